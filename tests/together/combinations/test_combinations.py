"""Every invariant in every cell: a few of them fast, all others slow."""

import pytest

from tests.together.combinations.checking import check
from tests.together.combinations.factors import described, fast_cells, slow_cells

FAST = [pytest.param(cell, marks=[pytest.mark.slow] * (place % 4 > 0)) for place, cell in enumerate(fast_cells())]


@pytest.mark.parametrize("cell", FAST, ids=map(described, fast_cells()))
def test_all_invariants_hold(cell, tmp_path):
    check(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cell", slow_cells(), ids=described)
def test_all_invariants_hold_everywhere(cell, tmp_path):
    check(cell, tmp_path)
