"""The import graph of the package: layers, no cycle, public names only at the top, and a map that lists every unit."""

import ast
import graphlib
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
LAYERS = [
    *("_version", "errors", "_warn", "_lazy", "_internals", "_validate", "types", "schedule", "seeds"),
    *("files", "device", "privacy", "models", "data", "clipping", "posterior", "methods", "prediction", "metrics"),
    *("plots", "lint", "release", "training", "tables", "sklearn", "audit", "experiments", "cli"),
]
"""From the lowest: a unit may import itself and those before it."""
OUTSIDE = {"__init__", "__main__", "guard", "likelihoods", "networks", "predict", "priors"}
"""The package itself and old or short public paths: nothing inside imports them."""
PUBLIC_ONLY = ("experiments", "cli")
"""Units that use the package as its users do, and so may import `dpbnn` itself."""


def module_name(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in (SRC / "dpbnn").rglob("*.py")}


def imported(path):
    """The modules of the package that a file imports, wherever in it, or lists in a stub to be imported later."""
    stub = path.with_suffix(".pyi")
    for node in ast.walk(ast.parse(path.read_text() + (stub.read_text() if stub.exists() else ""))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpbnn":
            for name in node.names:
                path_of_name = f"{node.module}.{name.name}"
                yield path_of_name if path_of_name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "dpbnn")


def unit(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_the_map_draws_every_unit_from_the_lowest_layer_up():
    units = {unit(module) for module in MODULES} - OUTSIDE
    assert units == set(LAYERS)
    tree, _ = (ROOT / "CONTRIBUTING.md").read_text().split("src/dpbnn/\n")[1].split("\ntests/")
    drawn = re.findall(r"(?<=  )(\w+)(?:/|\.py)", tree)
    assert drawn == LAYERS


def is_above(other, module):
    """Whether one module stands in a layer above another's."""
    if unit(other) in OUTSIDE:
        return unit(module) not in PUBLIC_ONLY
    return LAYERS.index(unit(other)) > LAYERS.index(unit(module))


def test_no_unit_imports_one_above_it():
    inside = {module: path for module, path in MODULES.items() if unit(module) not in OUTSIDE}
    imports = [(module, other) for module, path in inside.items() for other in imported(path)]
    assert [f"{module} imports {other}" for module, other in imports if is_above(other, module)] == []


def test_no_module_imports_itself_by_a_detour():
    graph = {module: {other for other in imported(path) if other != module} for module, path in MODULES.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("folder", [*(SRC / "dpbnn" / name for name in PUBLIC_ONLY), ROOT / "benchmarks"], ids=str)
def test_code_that_uses_the_package_as_users_do_imports_public_names_only(folder):
    """Public is what a module without an underscore lists in `__all__`; `experiments` takes it from `dpbnn.unit`."""
    private = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpbnn":
                names, parts = {name.name for name in node.names}, node.module.split(".")
                if parts[1:2] == [folder.name]:
                    continue
                is_deep = len(parts) > 2 and folder.name == "experiments"
                modules = {name for name in names if f"{node.module}.{name}" in MODULES and name[0] != "_"}
                if is_deep or any(part[0] == "_" for part in parts) or not names - modules <= exported(node.module):
                    private.append(f"{path.name}: from {node.module} import {', '.join(sorted(names))}")
    assert private == []


def exported(module):
    return set(getattr(importlib.import_module(module), "__all__", ()))


def test_there_is_one_class_of_each_name():
    seen = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name.lstrip("_"), []).append(module)
    assert {name: modules for name, modules in seen.items() if len(modules) > 1} == {}


def test_tests_mirror_the_tree():
    """A module over 80 lines has a test file of its name; smaller ones share their folder's."""
    missing = []
    for path in MODULES.values():
        if path.name.startswith("_") or len(path.read_text().splitlines()) <= 80:
            continue
        place = ROOT / "tests" / path.relative_to(SRC / "dpbnn")
        if not place.with_name(f"test_{path.name}").exists():
            missing.append(str(place.with_name(f"test_{path.name}").relative_to(ROOT)))
    assert missing == []
