"""At most so many rows of a person, whatever they hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbnn.errors import DpbnnError
from dpbnn.privacy.queries.contributions import kept_rows


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 4))
def test_the_first_rows_of_each_person_are_kept_in_their_order(people, most):
    kept = kept_rows(np.array(people, dtype=int), most)
    assert kept.tolist() == [i for i, name in enumerate(people) if people[:i].count(name) < most]


@pytest.mark.guarantees("Which of a person's rows are kept does not depend on anybody else's.")
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_which_rows_of_a_person_are_kept_does_not_depend_on_anybody_else(people):
    names = np.array(people)
    without = np.flatnonzero(names != "a")
    kept = kept_rows(names, 2)
    alone = without[kept_rows(names[without], 2)] if len(without) else np.array([], dtype=int)
    assert kept[names[kept] != "a"].tolist() == alone.tolist()


@pytest.mark.guarantees("Whether two rows are one person's does not depend on anybody else's name.")
@pytest.mark.parametrize(
    ("people", "stranger"),
    [
        ([2**63 + i for i in range(50)], 5),
        ([2**60 + i for i in range(50)], 0.5),
        ([1, 1.0, 1, 1.0], "x"),
        (["a", "a\x00", "a"], 7),
    ],
)
def test_a_name_of_another_kind_makes_nobody_somebody_else(people, stranger):
    kept = kept_rows(people, 1).tolist()
    assert kept_rows([*people, stranger], 1).tolist() == [*kept, len(people)]
    assert len(kept) == len(set(people))


@pytest.mark.parametrize(
    "missing",
    [
        np.array([1.0, np.nan]),
        np.array(["a", None], dtype=object),
        np.array([1.0, np.nan], dtype=object),
        ["a", math.nan],
        np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]"),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    ],
)
def test_every_row_has_a_person(missing):
    with pytest.raises(DpbnnError, match="must name the person of every row"):
        kept_rows(missing, 1)
