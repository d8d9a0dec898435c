"""Terms of a fit: one piece for tables and estimators, from public numbers alone."""

from dataclasses import replace

import pytest

pytest.importorskip("opendp")

from dpbnn.errors import DpbnnError
from dpbnn.tables.fitting import Order, _terms
from dpbnn.tables.schema import Category, Number, Schema
from dpbnn.tables.settings import NOISE_LEVEL, Facts
from dpbnn.tables.terms import FitFolder, circumstances, claimed, terms_for

FACTS = Facts(rows=4000, columns=2, classes=None, epsilon=2.0, delta=1e-5)
GIVEN = {"batch_size": 4000, "epochs": 5}


def test_what_is_bought_is_in_the_plan():
    terms = terms_for(FACTS, GIVEN, ["column 0", "the target"], buys_target=True)
    assert list(terms.bounds.purchases) == [
        f"{side} quartile of {name}" for name in ("column 0", "the target") for side in ("lower", "upper")
    ]
    assert dict(terms.chosen.purchases) == {**terms.bounds.purchases, NOISE_LEVEL: terms.chosen.noise_epsilon}
    assert terms.chosen.plan.pure_epsilons == tuple(terms.chosen.purchases.values())
    assert terms.chosen.plan.epsilon() <= FACTS.epsilon
    assert terms_for(FACTS, GIVEN).bounds is None


def test_a_person_with_several_rows_buys_bounds_for_less_each():
    one, three = (
        terms_for(replace(FACTS, max_records_per_person=most), GIVEN, ["column 0"]).bounds.epsilon for most in (1, 3)
    )
    assert 0 < 2.9 * three < one


@pytest.mark.parametrize("public", [True, False])
def test_a_table_and_an_estimator_come_to_the_same_terms(public, tmp_path):
    sklearn = pytest.importorskip("dpbnn.sklearn")
    schema = Schema({"a": Number(0, 1) if public else Number(), "y": Category(("no", "yes"))}, "y", rows=4000)
    table = _terms(Order(tmp_path / "it.csv", schema, tmp_path / "out", 2.0, 1e-5, given=GIVEN), 4000)
    how = {"classes": ["no", "yes"], "dataset_size": 4000, "bounds": (0, 1) if public else None, **GIVEN}
    estimator = sklearn.DPBayesClassifier(epsilon=2.0, **how)._terms(4000, 1, 2)
    assert estimator.chosen.plan == table.chosen.plan
    assert estimator.chosen.hidden == table.chosen.hidden
    assert list(estimator.chosen.purchases.values()) == list(table.chosen.purchases.values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0}, "epsilon must be > 0, got 0"),
        ({"delta": 1.5}, "delta must be > 0 and < 1, got 1.5"),
        ({"method": "adam"}, "method must be one of 'sgld'"),
        ({"max_records_per_person": 0}, "max_records_per_person must be >= 1, got 0"),
    ],
)
def test_facts_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(DpbnnError, match=message):
        replace(FACTS, **wrong)


def test_rows_that_were_counted_are_blanked_out_and_declared_ones_are_removed():
    counted, declared = circumstances(["it is public"], "rows were counted"), circumstances(["it is public"], None)
    assert (counted.adjacency, counted.assumptions) == ("zero_out", ("it is public", "rows were counted"))
    assert (declared.adjacency, declared.assumptions) == ("add_or_remove", ("it is public",))


def test_one_worker_at_a_time_has_the_folder_and_stops_when_it_is_taken_over(tmp_path):
    with claimed(tmp_path, take_over=False) as folder:
        with pytest.raises(DpbnnError, match="is worked on by another process or thread"), claimed(tmp_path, False):
            pass
        folder.check()
        (tmp_path / "owner").write_text('{"host": "elsewhere", "token": "another"}')
        with pytest.raises(DpbnnError, match="was taken over by a worker on elsewhere"):
            folder.check()
    (tmp_path / "ledger.json").write_text("{}")
    with pytest.raises(DpbnnError, match="belongs to a worker on elsewhere"), claimed(tmp_path, False):
        pass
    with claimed(tmp_path, take_over=True) as folder:
        folder.remove()
    assert not tmp_path.exists()


def test_without_a_folder_nothing_is_kept():
    nowhere = FitFolder()
    nowhere.check()
    nowhere.remove()
    assert (nowhere.ledger, nowhere.training) == (None, None)
