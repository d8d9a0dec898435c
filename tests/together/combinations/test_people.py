"""One person with a thousand rows in a search: three of them count at most, in training or in choosing, never in both.

That she counts with three in an estimator, and in a table, is an invariant of every cell (`invariants.py`).
"""

import warnings

import numpy as np
import pytest

from dpbnn.sklearn import DPBayesClassifier, DPBayesRegressor, DPGridSearch
from tests.together.combinations.subjects import MANY_ROWS, MARK
from tests.together.combinations.watch import Seen, same_chance, watching

ROWS, OTHERS, COLUMNS, EPSILON = 3, 60, 4, 20.0
GENERATOR = np.random.default_rng(0)
X = np.concatenate([GENERATOR.normal(size=(OTHERS, COLUMNS)), np.full((MANY_ROWS, COLUMNS), MARK)])
LABELS = np.concatenate([GENERATOR.integers(0, 2, OTHERS), np.full(MANY_ROWS, 1)])
NUMBERS = np.concatenate([GENERATOR.normal(size=OTHERS), np.full(MANY_ROWS, MARK)])
PEOPLE = np.array([f"p{row}" for row in range(OTHERS)] + ["she"] * MANY_ROWS)
SETTINGS = {"max_records_per_person": ROWS, "dataset_size": OTHERS, "hidden": [4], "batch_size": 20, "epochs": 1.0}
KINDS = {
    "classes": (DPBayesClassifier("sgd", classes=[0, 1], bounds=(-3, 3), random_state=0, **SETTINGS), LABELS),
    "numbers": (DPBayesRegressor("sgd", random_state=0, **SETTINGS), NUMBERS),  # bounds are bought
}


def searched(kind: str, rows: int, chance: int, replay: Seen | None = None) -> tuple[DPGridSearch, Seen]:
    own, y = KINDS[kind]
    search = DPGridSearch(own, {"learning_rate": [0.3, 0.6]}, epsilon=EPSILON, delta=1e-4, holdout=0.4)
    with warnings.catch_warnings(action="ignore"), same_chance(chance), watching(replay=replay) as seen:
        return search.fit(X[:rows], y[:rows], PEOPLE[:rows]), seen


def hers_in(clip) -> int:
    """Her rows are equal to each other, and to nobody else's."""
    _, counts = np.unique(np.concatenate([clip.x, clip.y.reshape(len(clip.y), 1)], axis=1), axis=0, return_counts=True)
    return int(counts.max(initial=0))


@pytest.mark.parametrize("kind", [pytest.param("classes", marks=pytest.mark.slow), "numbers"])
@pytest.mark.slow
def test_a_person_with_a_thousand_rows_counts_with_three_of_them_wherever_she_is(kind):
    places = set()
    for chance in range(20):
        search, seen = searched(kind, len(X), chance)
        *bought, choice = seen.queries
        assert all(hers_in(clip) <= ROWS for clip in seen.clips)
        assert all((query.data == MARK).sum() <= ROWS for query in bought)
        is_in_training = any(hers_in(clip) > 1 for clip in seen.clips)
        _, without = searched(kind, OTHERS, chance, replay=seen)
        moved = np.abs(choice.data - without.queries[-1].data)
        assert moved.max() <= (0 if is_in_training else ROWS)
        assert_is_paid(search, seen)
        places.add(is_in_training)
        if len(places) == 2:
            return
    pytest.fail(f"in twenty searches she was in training: {places}")


def assert_is_paid(search: DPGridSearch, seen: Seen) -> None:
    """Two candidates, each as planned, and one choice."""
    *bought, choice = seen.queries
    plan = search.best_estimator_.settings_.plan
    assert choice.epsilon == pytest.approx(EPSILON / ROWS)
    assert [(own.noise_multiplier, own.sensitivity) for own in seen.releases] == [
        (plan.noise_at(step), plan.clip_norm_at(step)) for step in range(plan.steps)
    ] * 2
    assert sorted(query.epsilon for query in bought) == pytest.approx(sorted(2 * plan.pure_epsilons))
    assert search.guarantee_.epsilon == EPSILON
