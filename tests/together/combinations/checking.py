"""All invariants in one cell, and in words what is broken."""

import traceback
from pathlib import Path

import pytest

from tests.together.combinations.bench import Bench
from tests.together.combinations.covering import Cell
from tests.together.combinations.invariants import INVARIANTS, BrokenError
from tests.together.combinations.makers import UnknownError
from tests.together.combinations.subjects import Subject


def check(cell: Cell, folder: Path) -> None:
    """Fail with every invariant that is broken, and with the whole combination."""
    found = broken_in(cell, folder)
    if found:
        combination = ", ".join(f"{factor}={value}" for factor, value in cell.items())
        pytest.fail("\n".join([*found, f"combination: {combination}"]), pytrace=False)


def broken_in(cell: Cell, folder: Path) -> list[str]:
    """Which invariants are broken, and how; of what the library raises, where it was raised."""
    bench, found = Bench(Subject(cell), folder), []
    for invariant in INVARIANTS:
        if not invariant.applies(cell):
            continue
        try:
            invariant.check(bench)
        except BrokenError as error:
            found.append(f"broken: {invariant.name}: {error}")
        except UnknownError as error:
            return [*found, str(error)]
        except Exception as error:  # whatever a combination of settings makes the library raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            return [*found, f"raised, to check whether {invariant.name}: {error!r} ({at.filename}, line {at.lineno})"]
    return found
