"""Every invariant in every cell: fast ones for all pairs at the privacy boundary, slow ones for the rest."""

import pytest

from tests.together.combinations.checking import check
from tests.together.combinations.factors import described, fast_cells, slow_cells


@pytest.mark.parametrize("cell", fast_cells(), ids=described)
def test_all_invariants_hold(cell, tmp_path):
    check(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("cell", slow_cells(), ids=described)
def test_all_invariants_hold_everywhere(cell, tmp_path):
    check(cell, tmp_path)
