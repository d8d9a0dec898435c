"""Every invariant in the cells that the suites leave out: all triples, and all quadruples at the privacy boundary."""

import pytest

from tests.together.combinations.checking import check
from tests.together.combinations.factors import described, long_cells


@pytest.mark.parametrize("cell", long_cells(), ids=described)
def test_all_invariants_hold_in_all_triples_and_in_quadruples_at_the_boundary(cell, tmp_path):
    check(cell, tmp_path)
