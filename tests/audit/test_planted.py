"""Every planted bug is noticed, and the real code raises no alarm."""

import inspect
from pathlib import Path

import pytest

from dpbnn.privacy.purchases import LedgerError
from tests.audit.planted import BUGS

DETECTORS = {bug.detector: bug for bug in BUGS}


def found(detector, tmp_path):
    """Whether the detector says so, or the ledger stops the run before."""
    try:
        return detector(tmp_path) if inspect.signature(detector).parameters else detector()
    except LedgerError:
        return True


def as_case(bug, name, is_slow=False):
    return pytest.param(bug, id=name, marks=pytest.mark.slow if bug.is_slow or is_slow else ())


@pytest.mark.planted
@pytest.mark.parametrize("bug", [as_case(bug, bug.name, bug is not DETECTORS[bug.detector]) for bug in BUGS])
def test_a_planted_bug_is_noticed(bug, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        bug.plant(patch)
        assert found(bug.detector, tmp_path)


@pytest.mark.planted
@pytest.mark.parametrize(
    "bug",
    [
        as_case(bug, f"{detector.__module__.rpartition('.')[2]}.{detector.__name__}")
        for detector, bug in DETECTORS.items()
    ],
)
def test_the_real_code_raises_no_alarm(bug, tmp_path):
    assert not found(bug.detector, tmp_path)


def test_the_page_lists_every_planted_bug_with_what_notices_it():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    rows = [f"| {bug.name} | {bug.detector.__doc__.rstrip('.')} |\n" for bug in BUGS]
    assert page.endswith("".join(rows))
    assert len(BUGS) >= 45
    assert len({bug.name for bug in BUGS}) == len(BUGS)
