"""What stands around the package: its version, citation and continuous integration."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import dpbnn

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
JOBS = WORKFLOW["jobs"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == citation["version"] == dpbnn.__version__
    assert f"## {dpbnn.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_old_names_are_in_the_changelog_and_their_time_is_not_up():
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    _, renamed = (ROOT / "CHANGELOG.md").read_text().split("### Renamed")
    for names in re.findall(r'warn_renamed\("([\w.]+)", "([\w.]+)"', source):
        assert all(f"`{name}`" in renamed for name in names), names
    (gone_in,) = set(re.findall(r'gone_in[^"\n]*"([\d.]+)"', source))
    assert [int(part) for part in PROJECT["version"].split(".")] < [int(part) for part in gone_in.split(".")]


def test_the_citation_is_complete():
    """What the schema of the Citation File Format 1.2.0 requires, of the work and of what it refers to."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["license"]
    for work in (citation, *citation["references"]):
        assert work["title"]
        assert work["type"] in ("software", "article")
        assert all("name" in author or {"given-names", "family-names"} <= author.keys() for author in work["authors"])
    assert citation["message"]


def test_jobs_run_make_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    assert commands == ["make test", "make test-slow", "make test-gpu"]
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_the_fast_job_tries_every_python_that_is_claimed():
    prefix = "Programming Language :: Python :: "
    claimed = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert JOBS["fast"]["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_jobs_may_only_read_and_run_pinned_actions():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    for name, job in JOBS.items():
        assert "permissions" not in job, name
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/none@{0:040}")), step


def test_no_stranger_reaches_a_runner_of_ones_own():
    """A pull request runs its author's code: on machines that are thrown away, and on no others."""
    own = {name for name, job in JOBS.items() if "self-hosted" in job["runs-on"]}
    assert own == {"gpu"}
    assert JOBS["gpu"]["if"].startswith("github.event_name == 'workflow_dispatch' && ")
    assert "pull_request_target" not in WORKFLOW[True]  # YAML 1.1 reads the key `on` so


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_forms_are_forms(form):
    content = yaml.safe_load(form.read_text())
    assert content.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
