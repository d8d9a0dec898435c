"""What `dpbnn plan` says about settings."""

import json
import re
from dataclasses import replace

import pytest

from dpbnn.errors import DpbnnError
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.settings import Settings
from dpbnn.privacy.statement import number_of_steps, print_table, statement_of

PLAN = PrivacyPlan(1000, 10, 5, clip_norm=1.0, noise_multiplier=1.0, delta=1e-4)


def stated(plan=PLAN, assumed=()):
    return statement_of("sgd", Settings(plan, 0.1, None), assumed)


def test_steps_are_never_more_than_the_epochs_hold():
    assert number_of_steps(None, 1.0, dataset_size=10, batch_size=3) == 3
    assert number_of_steps(None, 0.3, dataset_size=10, batch_size=1) == 3
    assert number_of_steps(None, 0.29, dataset_size=100, batch_size=1) == 29  # in floats 28.999...
    assert number_of_steps(7, None, dataset_size=10, batch_size=3) == 7
    for wrong in ((None, None), (7, 1.0), (None, 0.1)):
        with pytest.raises(DpbnnError, match=r"steps or epochs must be given|epochs must be enough for one step"):
            number_of_steps(*wrong, dataset_size=10, batch_size=10)


def test_every_figure_is_plain_data_and_that_of_the_plan():
    statement = stated(replace(PLAN, max_records_per_person=2))
    assert json.loads(json.dumps(statement)) == statement
    plan = PrivacyPlan.from_json(json.dumps(statement["plan"]))
    assert statement["epsilon"] == {name: plan.epsilon(name) for name in ("pld", "rdp", "gdp")}
    assert plan.epsilon() <= statement["reported_epsilon"] < plan.epsilon() + 1.0001e-4
    assert statement["unit"] == "one person with at most 2 records"
    assert statement["notes"] == []


@pytest.mark.parametrize(
    ("plan", "assumed", "note"),
    [
        (PLAN, ["delta"], "chosen as 0.0001"),
        (PLAN, ["clip_norm"], "clip norm was not given"),
        (replace(PLAN, delta=0.001), (), "Delta is at least 1/1000"),
        (replace(PLAN, noise_multiplier=0.3), (), "epsilon above 10 is a weak promise"),
        (replace(PLAN, delta=1e-14), (), "About epsilon: no PLD figure"),
    ],
)
def test_what_was_assumed_and_what_is_weak_is_said(plan, assumed, note):
    (said,) = [text for text in stated(plan, assumed)["notes"] if "PLD" in note or "About epsilon" not in text]
    assert note in said
    assert stated()["notes"] == []


@pytest.mark.parametrize("delta", [1 / 3000, 1e-5])
@pytest.mark.parametrize("noise", [0.61, 1.3, 77.0])
def test_the_table_shows_no_bound_below_what_was_computed_and_the_whole_delta(noise, delta, capsys):
    statement = stated(replace(PLAN, noise_multiplier=noise, delta=delta))
    print_table(statement)
    out = capsys.readouterr().out

    def shown(row):
        return float(next(line for line in out.splitlines() if row in line).split()[-2])

    for name in ("PLD", "RDP"):
        exact = statement["epsilon"][name.lower()]
        assert exact <= shown(f"epsilon by {name} (bound)") < exact + 1.0001e-4
    assert shown("epsilon if replaced (bound)") >= statement["epsilon_replace_one"]
    assert "epsilon by GDP (approximation)" in out
    assert shown("delta") == delta
    sentence = re.search(r"releases epsilon = (\S+) at delta = (\S+) for adding or removing one record", out)
    assert [float(own) for own in sentence.groups()] == [statement["reported_epsilon"], delta]
