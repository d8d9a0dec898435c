"""Values that change over a run, fixed in advance."""

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.schedule import as_schedule, check_length, combined, levels, value_at

RUNS = ((0.5, 3), (0.1, 2), (0.5, 1))


def test_every_step_has_the_value_of_its_run():
    assert [value_at(RUNS, step) for step in range(6)] == [0.5, 0.5, 0.5, 0.1, 0.1, 0.5]
    assert value_at(2.0, 100) == 2.0
    with pytest.raises(IndexError):
        value_at(RUNS, 6)


def test_levels_add_up_the_steps_of_equal_values():
    assert levels(RUNS, 6) == ((0.5, 4), (0.1, 2))
    assert levels(RUNS, 4) == ((0.5, 3), (0.1, 1))


def test_schedules_are_combined_step_by_step_and_equal_neighbours_merged():
    product = combined(lambda a, b: a * b, 6, RUNS, ((2.0, 3), (10.0, 3)))
    assert product == ((1.0, 5), (5.0, 1))
    assert combined(lambda a: a, 6, 3.0) == 3.0
    assert [value_at(product, step) for step in range(6)] == [
        value_at(RUNS, step) * (2.0 if step < 3 else 10.0) for step in range(6)
    ]


def test_what_only_rounding_tells_apart_is_one():
    assert combined(lambda a, b: a * b, 4, ((0.1, 2), (0.3, 2)), ((3.0, 2), (1.0, 2))) == 0.3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "1 to 64"),
        ([(1.0, 1)] * 65, "1 to 64"),
        ([(1.0,)], "a pair"),
        ([(-1.0, 3)], "rate must be > 0"),
        ([(1.0, 0)], "steps of a run"),
        ("fast", "rate must be"),
    ],
)
def test_bad_schedules_are_refused(value, words):
    with pytest.raises(DpbnnError, match=words):
        as_schedule("rate", value)


def test_runs_must_last_as_long_as_the_plan():
    check_length("rate", RUNS, 6)
    check_length("rate", 1.0, 6)
    with pytest.raises(DpbnnError, match="7 in all"):
        check_length("rate", RUNS, 7)
