"""What the documentation shows, runs."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpbnn
from dpbnn.experiments import ITEMS, tuning
from dpbnn.experiments import page as reproduced
from dpbnn.experiments.recipes import BEST

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [module.name for module in pkgutil.walk_packages(dpbnn.__path__, "dpbnn.")]


def test_the_readmes_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "release" / "release.json").exists()


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_the_code_in_pages_runs(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(example, page.name, "exec"), {})


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_come_out(name):
    if name.startswith("dpbnn.kernels.of_"):
        pytest.importorskip("triton")
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_examples_in_pages_come_out():
    for page in PAGES:
        assert doctest.testfile(str(page), module_relative=False).failed == 0, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(r"`((?:tests|benchmarks|docs)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    "command", re.findall(r"^\$ (dpbnn plan .*?)(?:  #.*)?$", "\n".join(p.read_text() for p in PAGES), re.M)
)
def test_commands_in_pages_run(command):
    words = command.split("   #")[0].split()[1:]
    finished = subprocess.run([sys.executable, "-c", "from dpbnn.cli import main; main()", *words], capture_output=True)
    assert finished.returncode == 0, finished.stderr


def test_the_reproduction_shows_what_its_files_hold():
    docs = ROOT / "docs"
    assert (docs / reproduced.PAGE).read_text() == reproduced.page(docs), "dpbnn reproduce --draw makes it again"
    files = sorted((docs / reproduced.FOLDER).glob("*.json"))
    assert files
    for file in files:
        results = json.loads(file.read_text())
        assert results["size"] == "full"
        if ITEMS[results["name"]].picture is not None:
            assert reproduced.picture_mark(results) in file.with_suffix(".svg").read_text(), file.stem
            assert file.with_suffix(".png").is_file()


def test_the_best_settings_are_those_that_tuning_found():
    found = json.loads((ROOT / "docs" / "reproduction" / "tuning.json").read_text())
    assert {pair: tuning.winner(found, *pair) for pair in BEST} == BEST
