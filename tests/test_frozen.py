"""Frozen means frozen: no part of a frozen dataclass can be changed in place, and nobody goes round its lock."""

import ast
from contextlib import suppress
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "dpbnn"
TREES = {path.relative_to(SRC): ast.parse(path.read_text()) for path in SRC.rglob("*.py")}
MUTABLE = {"dict", "list", "set", "bytearray", "deque", "defaultdict", "Counter", "ndarray", "Generator", "Generators"}
"""A `Mapping`, a tuple or a frozenset says the same and cannot be written to."""
EXPECTED = ("_ListedRandomness", "_Mixture", "Seen", "CheckedModel", "Trial", "TrialResult")
"""What is still to be mended."""


def names_in(node):
    """Every name of an annotation, also of one that is written as a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        with suppress(SyntaxError):  # words
            yield from names_in(ast.parse(node.value, mode="eval"))
    elif isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node).rpartition(".")[2]
    elif not (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Callable"):  # whose parts are arguments
        yield from (name for part in ast.iter_child_nodes(node) for name in names_in(part))


def aliases():
    """Names of types that stand for one of these, such as ``Weights = dict[str, Tensor]``."""
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                yield ast.unparse(node.targets[0]), set(names_in(node.value))


CLASSES = {node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
MUTABLE |= {name for name, parts in aliases() if parts & MUTABLE} - CLASSES


def is_frozen(node):
    """Whether it is a frozen dataclass."""
    marks = map(ast.unparse, getattr(node, "decorator_list", ()))
    return isinstance(node, ast.ClassDef) and any("dataclass" in mark and "frozen=True" in mark for mark in marks)


def fields(cls):
    annotated = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    return [node for node in annotated if "ClassVar" not in set(names_in(node.annotation))]


FROZEN = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree) if is_frozen(node)]


def test_frozen_classes_are_seen_and_so_is_what_can_be_changed():
    assert len(FROZEN) > 50
    assert "Weights" in MUTABLE
    (bad,) = ast.parse("class Bad:\n    x: 'tuple[dict[str, int], ...]'").body
    assert MUTABLE & set(names_in(fields(bad)[0].annotation)) == {"dict"}


@pytest.mark.parametrize(("path", "cls"), FROZEN, ids=[f"{path}:{cls.name}" for path, cls in FROZEN])
def test_no_part_of_a_frozen_class_can_be_changed(path, cls):
    written = {ast.unparse(field) for field in fields(cls) if MUTABLE & set(names_in(field.annotation))}
    assert written == set() or cls.name in EXPECTED, "a tuple, a Mapping (MappingProxyType) or no frozen=True"


def test_no_lock_is_gone_round():
    """`object.__setattr__` stands in `__post_init__`, where a frozen class brings its values into their form."""
    outside = []
    for path, tree in TREES.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        inside = {node for function in functions if function.name == "__post_init__" for node in ast.walk(function)}
        calls = {node for node in ast.walk(tree) if isinstance(node, ast.Call)} - inside
        outside += [str(path) for node in calls if ast.unparse(node.func) == "object.__setattr__"]
    assert outside == []
