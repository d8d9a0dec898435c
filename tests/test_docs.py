"""What the documentation shows, runs."""

import doctest
import importlib
import json
import pkgutil
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import dpbnn
from dpbnn.experiments import reproducing as reproduced
from dpbnn.experiments import tuning
from dpbnn.experiments.settings import BEST
from dpbnn.tables import settings as choosing
from dpbnn.tables.schema import parse_schema

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(ROOT.glob("docs/*.md"))
MODULES = [module.name for module in pkgutil.walk_packages(dpbnn.__path__, "dpbnn.")]


def test_the_readmes_examples_run(tmp_path, monkeypatch):
    """The first is given a model and records, as it says; the second makes them, and goes on from the first."""
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    X, y = torch.randn(2000, 20), torch.randint(2, (2000,))
    names = {"model": torch.nn.Linear(20, 2), "X": X, "y": y, "X_new": X[:5]}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    assert sum(bool(line) for line in examples[0].splitlines()) == 5
    assert (tmp_path / "release" / "release.json").exists()


@pytest.mark.slow
def test_the_picture_of_the_readme_is_drawn_again(tmp_path):
    path = tmp_path / "overview.png"
    subprocess.run([sys.executable, ROOT / "examples" / "overview.py", path], check=True)
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if page.name != "extending.md"], ids=lambda page: page.name
)
def test_the_code_in_pages_runs(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(example, page.name, "exec"), {})


def test_each_file_of_the_page_on_extending_is_put_to_use():
    """What it registers would stay: the tests in `tests/extending` run it, and take that back."""
    page, tests = ROOT / "docs" / "extending.md", "".join(f.read_text() for f in ROOT.glob("tests/extending/test_*.py"))
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(sections) >= 4
    assert all(f'skeleton("{heading}")' in tests for heading, text in sections if "```python" in text)


@pytest.mark.filterwarnings("ignore:.* the old name goes:FutureWarning")
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_come_out(name):
    if name.startswith("dpbnn.device.kernels."):
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
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert list((ROOT / "tests").rglob(name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_the_package_in_a_page_is_there(page):
    for name in sorted(set(re.findall(r"\bdpbnn(?:\.[A-Za-z_]\w*)+", page.read_text()))):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize(
    "command", re.findall(r"^\$ (dpbnn plan .*?)(?:  #.*)?$", "\n".join(p.read_text() for p in PAGES), re.M)
)
def test_commands_in_pages_run(command):
    words = command.split("   #")[0].split()[1:]
    finished = subprocess.run([sys.executable, "-m", "dpbnn", *words], capture_output=True)
    assert finished.returncode == 0, finished.stderr


def test_the_reproduction_shows_what_its_files_hold():
    docs = ROOT / "docs"
    assert (docs / reproduced.PAGE).read_text() == reproduced.page(docs), "dpbnn reproduce --draw makes it again"
    files = sorted((docs / reproduced.FOLDER).glob("*.json"))
    assert files
    for file in files:
        results = json.loads(file.read_text())
        assert results["size"] == "full"
        assert reproduced.picture_mark(results) in file.with_suffix(".svg").read_text(), file.stem
        assert file.with_suffix(".png").is_file()
        assert all(f'"{name}": ' in file.read_text() for name in ("settings", "seeds", "epsilon", "seconds")), file.stem


def test_the_best_settings_are_those_that_tuning_found():
    found = json.loads((ROOT / "docs" / "reproduction" / "tuning.json").read_text())
    assert {pair: tuning.winner(found, *pair) for pair in BEST} == BEST


def test_the_readmes_table_is_that_of_the_reproduction():
    folder, readme = ROOT / "docs" / "reproduction", (ROOT / "README.md").read_text()
    titles = {"sgld": "DP-SGLD", "bbp": "DP-BBP", "mc_dropout": "DP-MC Dropout", "sgd": "DP-SGD"}
    ours, papers = {}, {}
    for name, figure in (("accuracy", "private"), ("calibration", "private_ece")):
        for row in json.loads((folder / f"{name}.json").read_text())["rows"]:
            if row["best"] is not None:
                case = row["network"], row["method"]
                ours.setdefault(case, []).append(f"{statistics.median(row['best'][figure]):.3f}")
                papers.setdefault(case, (row["paper"] or {}).get("private"))
    for method, title in titles.items():
        cells = [title]
        for network in ("mlp", "cnn"):
            accuracy, error = ours[network, method]
            paper = papers[network, method]
            cells += [f"{accuracy} ({error})", "-" if paper is None else f"{paper:.2f}"]
        assert f"| {' | '.join(cells)} |" in readme


def test_the_page_on_methods_shows_what_its_file_holds():
    page = (ROOT / "docs" / "methods.md").read_text()
    kept = json.loads((ROOT / "benchmarks" / "posterior.json").read_text())
    noise = [f"| {row['theory']:.3g} | {row['measured']:.3g} |" for row in kept["minibatch noise"]]
    clipping = [f"| {row['variance']:.3g} | {row['shift_in_standard_deviations']:.2f} |" for row in kept["clipping"]]
    measures = ("negative_log_likelihood", "accuracy", "expected_calibration_error")
    chains = [
        f"| {' | '.join([row['kept'], *(f'{row[name]:.3f}' for name in measures)])} |"
        for row in kept["summary of the chain"]
    ]
    assert [row for row in noise + clipping + chains if row not in page] == []


def test_the_readmes_areas_under_the_curve_are_those_of_the_reproduction():
    results = json.loads((ROOT / "docs" / "reproduction" / "out-of-distribution.json").read_text())
    best = {(row["network"], row["method"]): row["ours"]["best"] for row in results["rows"]}
    areas = [
        f"{statistics.median(best[network, method][score]):.2f}"
        for network in ("mlp", "cnn")
        for method, score in (("sgld", "mutual_information"), ("sgd", "entropy"))
    ]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert "(AUROC {} against {}); with the CNN it does not ({} against {})".format(*areas) in readme


def test_the_page_on_tables_shows_what_its_file_holds():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        tabular = importlib.import_module("tabular")
    finally:
        sys.path.pop(0)
    page, kept = (
        (ROOT / "docs" / "tables.md").read_text(),
        json.loads((ROOT / "benchmarks" / "tabular.json").read_text()),
    )
    assert page == tabular.filled(page, kept), "python benchmarks/tabular.py --page makes it again"
    accuracy = tabular._median(kept, "adult", "default", 1.0, "accuracy")
    assert f"accuracy of {accuracy:.3f}" in " ".join((ROOT / "README.md").read_text().split())


def test_the_defaults_for_tables_are_near_tuned_settings_and_above_peers():
    kept = json.loads((ROOT / "benchmarks" / "tabular.json").read_text())

    def median(name, way, epsilon, figure):
        found = [own[figure] for key, own in kept.items() if key.startswith(f"{name}, {way}, {epsilon}, ")]
        assert len(found) == 10
        return statistics.median(found)

    for name in {key.split(",")[0] for key in kept if ", default, " in key}:
        for epsilon in (1, 3):
            losses = [median(name, way, epsilon, "negative_log_likelihood") for way in ("default", "tuned")]
            is_near = losses[0] - losses[1] <= 0.1 * abs(losses[1])
            if name in ("adult", "german", "pima"):
                ours, tuned = (median(name, way, epsilon, "accuracy") for way in ("default", "tuned"))
                is_near = is_near or ours >= tuned - 0.02
                for peer in ("LogisticRegression", "GaussianNB"):
                    assert ours >= median(name, "diffprivlib", epsilon, peer), (name, epsilon)
            assert is_near, (name, epsilon)
    assert median("adult", "default", 1, "accuracy") >= 0.84
    assert median("adult", "default", 1, "expected_calibration_error") <= 0.02


def test_the_schema_on_the_page_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "tables.md").read_text(), re.S)
    found = parse_schema(tomllib.loads(text), "the page")
    assert (found.target, found.person, found.rows_per_person) == ("readmitted", "patient", 3)
    assert list(found.features) == ["age", "cost", "ward", "smoker"]


def test_the_rules_on_the_page_are_those_of_the_code():
    page = (ROOT / "docs" / "tables.md").read_text()
    for number in (*choosing.CLIP_SHARE.values(), *choosing.LARGEST_RATE.values(), choosing.LEAST_BATCH):
        assert f"{number:g}" in page
    for share, most in choosing.TIME.values():
        assert f"{share:g} n mu, at most {most:,.0f} + {choosing.FURTHER_TIME:g} n mu" in page
    assert f"{choosing.FEWEST_STEPS} to {choosing.MOST_STEPS:,}" in page
    (many, wide), (enough, narrow) = choosing.HIDDEN
    assert f"{narrow[0]} from n mu = {enough:,.0f} on, {wide[0]} from {many:,.0f} on" in page
