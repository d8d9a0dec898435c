"""Every planted bug is noticed, and the real code raises no alarm."""

import inspect
from pathlib import Path

import pytest

from tests.audit.planted import BUGS


def found(detector, tmp_path_factory):
    return detector(tmp_path_factory) if inspect.signature(detector).parameters.get("tmp_path_factory") else detector()


SLOW = ("NaN let through", "batches cut", "empty batches skipped", "sampling rate taken", "one record counted")


def as_case(bug):
    return pytest.param(bug, id=bug.name, marks=pytest.mark.slow if bug.name.startswith(SLOW) else ())


@pytest.mark.planted
@pytest.mark.parametrize("bug", [as_case(bug) for bug in BUGS])
def test_a_planted_bug_is_noticed(bug, monkeypatch, tmp_path_factory):
    with monkeypatch.context() as patch:
        bug.plant(patch)
        assert found(bug.detector, tmp_path_factory)


@pytest.mark.planted
@pytest.mark.parametrize("detector", sorted({bug.detector for bug in BUGS}, key=lambda own: own.__name__))
def test_the_real_code_raises_no_alarm(detector, tmp_path_factory):
    assert not found(detector, tmp_path_factory)


def test_the_page_lists_every_planted_bug_with_what_notices_it():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    rows = [f"| {bug.name} | {bug.detector.__doc__.rstrip('.')} |\n" for bug in BUGS]
    assert page.endswith("".join(rows))
    assert len(BUGS) >= 17
