"""The noisy maximum: mostly the best, and private."""

import math
from collections import Counter

import pytest

from dpbnn.privacy.queries.selection import noisy_maximum
from tests.spending import permitted

pytest.importorskip("opendp")


def chosen(scores, epsilon):
    return permitted(epsilon, lambda permit: noisy_maximum(scores, permit))


def losses(epsilon, draws=6_000):
    counts = [Counter(chosen(scores, epsilon) for _ in range(draws)) for scores in ([5.0, 5.0], [6.0, 5.0])]
    return max(abs(math.log(counts[0][place] / counts[1][place])) for place in (0, 1))


@pytest.mark.guarantees(
    "Adding or removing one record changes no probability by more than the factor e^epsilon of the permit."
)
@pytest.mark.slow
def test_one_record_changes_no_probability_by_more_than_the_factor():
    assert losses(1.0) < 1.1
    assert losses(3.0) > 1.1, "a larger epsilon would be noticed"


def test_the_best_is_chosen_where_it_is_clearly_so():
    assert {chosen([1.0, 100.0, 3.0], 1.0) for _ in range(50)} == {1}
