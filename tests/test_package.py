"""The package as a stranger meets it: quick to import, small, whole, and working from its wheel."""

import ast
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import dpbnn

ROOT = Path(__file__).parent.parent


def python(code, executable=sys.executable):
    return subprocess.run([executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_loads_nothing_but_python():
    code = "import sys; before = set(sys.modules); import dpbnn; print(*(set(sys.modules) - before))"
    loaded = {name.partition(".")[0] for name in python(code).split()}
    assert loaded - sys.stdlib_module_names == {"dpbnn"}


def test_training_loads_no_library_that_it_does_not_use():
    code = "import torch, sys; before = set(sys.modules); from dpbnn import fit; print(*(set(sys.modules) - before))"
    loaded = set(python(code).split())
    assert not loaded & {"dp_accounting", "sklearn", "scipy", "matplotlib", "rich", "typer", "pandas"}


def test_what_training_needs_is_there_at_most_0_4_seconds_after_torch():
    code = "import time, torch; start = time.process_time(); from dpbnn import fit; print(time.process_time() - start)"
    assert min(float(python(code)) for _ in range(3)) < 0.4


@pytest.mark.parametrize(
    "package", [dpbnn, dpbnn.audit, dpbnn.methods, dpbnn.tables], ids=lambda package: package.__name__
)
def test_names_that_are_imported_late_are_those_of_the_stub_that_a_type_checker_sees(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    listed = {name.asname: node.module for node in stub.body[1:] for name in node.names}
    public = {name: home for name, home in listed.items() if home != package.__name__ and name[0] != "_"}
    fresh = f"import {package.__name__} as it; from importlib import import_module as of; "
    python(fresh + f"assert all(getattr(it, name) is getattr(of(home), name) for name, home in {public}.items())")
    assert package.__all__ == sorted(set(listed) - {"__version__"})
    assert all(inspect.ismodule(getattr(package, name)) for name in set(package.__all__) - set(public))
    assert set(package.__all__) <= set(dir(package))
    assert not any(name == "lazy_names" or (name[0] == "_" and name[:2] != "__") for name in dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


def test_its_parts_are_there_without_an_import_of_each():
    pytest.importorskip("sklearn")
    parts = ["audit", "clipping", "data", "lint", "metrics", "networks", "plots", "prediction", "sklearn", "tables"]
    code = f"import dpbnn; print(*(getattr(dpbnn, part).__name__ for part in {parts}))"
    assert python(code).split() == [f"dpbnn.{part}" for part in parts]


OLD_NAMES = {
    "guard": "lint",
    "likelihoods": "models.likelihoods",
    "predict": "prediction",
    "priors": "models.priors",
}


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_still_works_and_says_the_new_one_where_it_is_used(old, new):
    sys.modules.pop(f"dpbnn.{old}", None)
    with pytest.warns(FutureWarning, match=f"dpbnn.{old} is now dpbnn.{new}; ") as said:
        module = importlib.import_module(f"dpbnn.{old}")
    assert (len(said), said[0].filename) == (1, __file__)
    now = importlib.import_module(f"dpbnn.{new}")
    public = [getattr(now, name) for name in now.__all__]
    assert all(any(getattr(module, name) is value for value in public) for name in module.__all__)


def build(source, into):
    """The source archive and the wheel that is made from it."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    command = [sys.executable, "-m", "build", "--outdir", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (archive,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return archive, wheel


@pytest.mark.slow
def test_the_wheel_holds_only_the_package_and_works_in_an_empty_environment(tmp_path):
    archive, wheel = build(ROOT, tmp_path / "first")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dpbnn", f"dpbnn-{dpbnn.__version__}.dist-info"}
    assert {"dpbnn/py.typed", "dpbnn/__init__.pyi", "dpbnn/methods/__init__.pyi"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any("test" in name for name in names)

    shutil.unpack_archive(archive, tmp_path, filter="data")  # other paths and dates of files
    again = build(tmp_path / f"dpbnn-{dpbnn.__version__}", tmp_path / "second")
    assert [path.read_bytes() for path in again] == [archive.read_bytes(), wheel.read_bytes()]

    venv.create(tmp_path / "empty", with_pip=True)
    binaries = tmp_path / "empty" / "bin"
    install = [
        str(binaries / "pip"),
        "install",
        "--quiet",
        "--constraint",
        str(ROOT / "constraints.txt"),
        f"{wheel}[sklearn]",
    ]
    subprocess.run(install, check=True, capture_output=True)
    result = subprocess.run(
        [str(binaries / "dpbnn"), "demo", "--json"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert json.loads(result.stdout)["accuracy"] > 0.85
