"""The package as a stranger meets it: quick to import, small, whole, and working from its wheel."""

import json
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


def test_importing_loads_no_heavy_library():
    code = "import torch, sys; before = set(sys.modules); import dpbnn; print(*(set(sys.modules) - before))"
    loaded = set(python(code).split())
    assert not loaded & {"dp_accounting", "sklearn", "scipy", "matplotlib", "rich", "typer", "pandas"}


def test_importing_takes_at_most_0_4_seconds_more_than_torch():
    code = "import time, torch; start = time.process_time(); import dpbnn; print(time.process_time() - start)"
    assert min(float(python(code)) for _ in range(3)) < 0.4


def test_every_public_name_is_there():
    assert all(hasattr(dpbnn, name) for name in dpbnn.__all__)
    assert len(dpbnn.__all__) == len(set(dpbnn.__all__))


def test_the_version_is_the_packages(tmp_path):
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{dpbnn.__version__}"' in project
    assert f"## {dpbnn.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_demo_learns_under_its_budget(capsys):
    from dpbnn.cli.demo import EPSILON, as_text, run_demo

    result = run_demo()
    assert result["accuracy"] > 0.85
    assert result["guarantee"].epsilon <= EPSILON
    assert result["guarantee"].voided_by == ()
    assert "differentially private with epsilon = 2" in as_text(result).replace("\n", " ")


@pytest.mark.slow
def test_the_wheel_holds_only_the_package_and_works_in_an_empty_environment(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dpbnn", f"dpbnn-{dpbnn.__version__}.dist-info"}
    assert "dpbnn/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any("test" in name for name in names)

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
