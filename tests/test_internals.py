"""Private parts of torch and NumPy: each still does what the package relies on, and only `_internals` uses them."""

import ast
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from dpbnn import _internals

SRC = Path(_internals.__file__).parent
TRIED = "torch 2.11 and 2.13 with NumPy 2.4"


class Seen(TorchFunctionMode):
    """The names of the functions that a `TorchFunctionMode` sees."""

    def __init__(self):
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operations(_internals.ThreadMode):
    """The operators of torch that run in this thread."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def modes_see_no_torch_function():
    with Seen() as mode, _internals.without_torch_function():
        torch.ones(2) + 1
    return mode.names == []


def modes_see_inside():
    x, weights = torch.ones(2, 1, 4), (torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4), None)
    with Seen() as mode:
        _internals.watched_inside(F.multi_head_attention_forward)(x, x, x, 4, 2, *weights)
    return "linear" in mode.names


def a_mode_sees_operators():
    outside = torch.ones(2)
    with Operations() as mode:
        outside + 1
    outside + 1
    return mode.seen == [torch.ops.aten.add.Tensor]


def transforms_are_seen():
    inside = []
    torch.vmap(lambda x: (inside.append(_internals.in_vmap_or_grad()), x)[1])(torch.ones(2))
    return inside == [True] and not _internals.in_vmap_or_grad()


def arguments_have_names_and_defaults():
    arguments = _internals.arguments_of(torch.ops.aten.native_dropout.default)
    with_generator = _internals.arguments_of(torch.ops.aten.bernoulli.default)
    defaults = {one.name: one.default_value for one in with_generator if one.has_default_value()}
    return [one.name for one in arguments] == ["input", "p", "train"] and defaults == {"generator": None}


def writes_are_counted():
    values = torch.zeros(3)
    values.detach()[1:].add_(1)
    return _internals.writes_to(values) == 1


def memory_has_one_key():
    values = torch.zeros(3)
    keys = [_internals.storage_key(one.untyped_storage()) for one in (values, values[1:], torch.zeros(3))]
    return keys[0] == keys[1] != keys[2]


def children_are_all_there():
    shared, model = nn.Tanh(), nn.Module()
    model.first, model.again, model.empty = shared, shared, None
    model.register_module("none", None)
    children = _internals.children_of(model)
    children["again"] = nn.ReLU()
    return list(children) == ["first", "again", "none"] and isinstance(model.again, nn.ReLU)


def parts_hold_everything():
    held = {name for name, value in vars(nn.BatchNorm1d(2)).items() if isinstance(value, dict) and value}
    held |= {name for name, value in vars(nn.Sequential(nn.ReLU())).items() if isinstance(value, dict) and value}
    return held == set(_internals.MODULE_PARTS)


def compiled_modules_are_known():
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    return _internals.is_compiled(compiled) and not _internals.is_compiled(nn.Linear(2, 2))


def padding_is_the_convolutions():
    layer, x = nn.Conv2d(1, 1, (4, 3), padding="same", padding_mode="circular"), torch.randn(1, 1, 6, 7)
    padded = F.pad(x, _internals.padding_reversed(layer), mode="circular")
    return torch.equal(F.conv2d(padded, layer.weight, layer.bias), layer(x))


def generators_are_those_that_everybody_shares():
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        of_torch, of_numpy, of_bits, of_python = _internals.global_generators()
        numbers = of_torch.initial_seed(), of_numpy.randint(1 << 30), of_python.random()
        is_numpys = isinstance(of_bits, np.random.BitGenerator)
        return is_numpys and numbers == (1, np.random.RandomState(1).randint(1 << 30), random.Random(1).random())
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def kinds_are_the_layers():
    return (
        issubclass(nn.BatchNorm2d, _internals.AnyBatchNorm)
        and issubclass(nn.InstanceNorm3d, _internals.AnyInstanceNorm)
        and issubclass(nn.FeatureAlphaDropout, _internals.AnyDropout)
        and not issubclass(nn.GroupNorm, (_internals.AnyBatchNorm, _internals.AnyInstanceNorm))
    )


def trees_come_apart_and_together():
    tree = {"a": [1, (2, 3)], "b": None}
    leaves, form = _internals.tree_flatten(tree)
    return _internals.tree_leaves(tree) == leaves and _internals.tree_unflatten(leaves, form) == tree


CHECKS = {
    "without_torch_function": modes_see_no_torch_function,
    "watched_inside": modes_see_inside,
    "ThreadMode": a_mode_sees_operators,
    "in_vmap_or_grad": transforms_are_seen,
    "arguments_of": arguments_have_names_and_defaults,
    "writes_to": writes_are_counted,
    "storage_key": memory_has_one_key,
    "children_of": children_are_all_there,
    "MODULE_PARTS": parts_hold_everything,
    "is_compiled": compiled_modules_are_known,
    "padding_reversed": padding_is_the_convolutions,
    "global_generators": generators_are_those_that_everybody_shares,
    **dict.fromkeys(("AnyBatchNorm", "AnyInstanceNorm", "AnyDropout"), kinds_are_the_layers),
    **dict.fromkeys(("tree_flatten", "tree_leaves", "tree_unflatten"), trees_come_apart_and_together),
}


@pytest.mark.parametrize("name", _internals.__all__)
def test_a_private_part_does_what_is_expected_of_it(name):
    try:
        works = CHECKS[name]()
    except (AttributeError, TypeError, RuntimeError) as error:
        works, reason = False, f": {error}"
    else:
        reason = ""
    versions = f"torch {torch.__version__}, NumPy {np.__version__}"
    assert works, f"{versions} broke dpbnn._internals.{name}, which {TRIED} had; mend it there{reason}"


def private(node):
    """The private names that a piece of code takes from torch or NumPy, or from an object of theirs."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("torch", "numpy"):
        return [name for name in (*node.module.split("."), *(one.name for one in node.names)) if name[0] == "_"]
    if isinstance(node, ast.Attribute) and node.attr[0] == "_" and not node.attr.startswith("__"):
        return [] if ast.unparse(node.value) in ("self", "cls", "torch.ops.aten") else [node.attr]
    return []


def private_names(path):
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in private(node)}


def own_names():
    """What the package itself defines under private names."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def test_nothing_else_touches_a_private_part():
    inside = private_names(SRC / "_internals.py") | set(_internals.MODULE_PARTS) | {"_orig_mod"}
    ours = set(own_names()) - inside | {"_getframe"}  # documented, in spite of its name
    found = {path: private_names(path) - ours for path in SRC.rglob("*.py") if path.name != "_internals.py"}
    for path, names in found.items():
        names |= {name for name in inside if f'"{name}"' in path.read_text()}
    assert {str(path.relative_to(SRC)): names for path, names in found.items() if names} == {}
