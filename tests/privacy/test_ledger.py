"""Every release is charged, none beyond the plan, and nothing leaves before all of it is in order."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.privacy.budget import JointCharge, composed_epsilon
from dpbnn.privacy.guarantee import Circumstances, PrivacyGuarantee
from dpbnn.privacy.ledger import Ledger, SearchLedger, fingerprint
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.privacy.purchases import Entry, LedgerError
from dpbnn.privacy.queries import selection
from dpbnn.types import NoisySum


def plan(noise, steps, pure=(), most=1):
    level = {"clip_norm": 1.0, "noise_multiplier": noise, "delta": 1e-5, "pure_epsilons": pure}
    return PrivacyPlan(dataset_size=100, batch_size=10, steps=steps, max_records_per_person=most, **level)


def draw(value):
    """A mechanism that looks at nothing."""
    return lambda permit: permit.spend("a draw") and value


def resumed(plan, charges):
    ledger = Ledger(plan)
    ledger.resume(charges)
    return ledger


def completed(ledger):
    for step in range(ledger.plan.steps):
        ledger.enter(step, step)
    return ledger


def guarantee_of(ledger):
    return PrivacyGuarantee.for_ledger(ledger, Circumstances(), random_source="a test")


@pytest.mark.guarantees("No noise level is ever charged for more steps than the plan has at that level.")
def test_no_noise_level_is_ever_charged_for_more_steps_than_the_plan_has_at_that_level():
    ledger = Ledger(plan([(1.0, 2), (2.0, 3)], 5))
    for step, mark in ((0, 10), (1, 11), (0, 99)):
        if ledger.can_afford(step):
            ledger.enter(step, mark)
    assert ledger.charges == [(0, 10), (1, 11)]  # the repetition that differed finds no budget at noise 1.0
    assert not ledger.holds(0, 99)
    with pytest.raises(RuntimeError, match="beyond the plan"):
        ledger.enter(1, 12)
    assert ledger.can_afford(2)


@pytest.mark.guarantees("A step that is repeated bit for bit is charged once.")
def test_a_step_that_is_repeated_bit_for_bit_is_charged_once():
    ledger = resumed(plan(1.0, 3), [(0, 10), (1, 11)])
    assert ledger.holds(1, 11)
    assert not ledger.holds(1, 12)
    assert ledger.can_afford(1)
    ledger.enter(1, 12)
    assert not ledger.can_afford(2)


def test_releases_with_another_key_are_not_known_but_stay_charged():
    ledger = resumed(plan(1.0, 3), [(0, None), (1, None), (0, 20)])
    assert ledger.holds(0, 20)
    assert not ledger.has_charged(1)
    assert len(ledger.charges) == 3
    assert not ledger.can_afford(1)


def test_a_line_of_the_journal_for_which_there_is_no_room_is_not_a_release():
    ledger = resumed(plan([(1.0, 1), (2.0, 2)], 3), [(0, 10), (0, 11), (1, 12)])
    assert ledger.charges == [(0, 10), (1, 12)]
    assert not ledger.holds(0, 11)


def test_the_smallest_change_anywhere_changes_the_fingerprint():
    values = {"a": torch.randn(100, 30), "b": torch.randn(7, dtype=torch.float64)}
    mark = fingerprint(NoisySum(values))
    assert fingerprint(NoisySum({name: v.clone() for name, v in values.items()})) == mark
    for name in values:
        for index in range(0, values[name].numel(), 5):
            changed = {key: v.clone() for key, v in values.items()}
            flat = changed[name].view(-1)
            flat[index] = torch.nextafter(flat[index], torch.full_like(flat[index], 10.0))
            assert fingerprint(NoisySum(changed)) != mark


def test_changes_that_cancel_in_a_plain_sum_are_noticed():
    values = torch.randn(1000)
    bits = values.view(torch.int32).clone()
    bits[3] += 1
    bits[4] -= 1
    assert fingerprint(NoisySum({"a": bits.view(torch.float32)})) != fingerprint(NoisySum({"a": values}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_number_without_a_dimension_has_a_fingerprint(dtype):
    one, other = (NoisySum({"a": torch.tensor(value, dtype=dtype)}) for value in (1.0, 2.0))
    assert fingerprint(one) == fingerprint(NoisySum({"a": one.gradients["a"].view(1)})) != fingerprint(other)


@pytest.mark.guarantees("Opening a ledger charges the open budget once.")
def test_opening_a_ledger_charges_the_open_budget_once():
    with dpbnn.BudgetAccountant(epsilon=50, delta=1e-4) as budget:
        ledger = completed(Ledger.open(plan(5.0, 2, (0.1,)), {"a bound": 0.1}))
        ledger.buy("a bound", draw(3.0))
        guarantee_of(ledger)
        assert budget.charges == [JointCharge((ledger.plan,))]
        Ledger(ledger.plan)
        assert len(budget.charges) == 1
    with dpbnn.BudgetAccountant(epsilon=0.01, delta=1e-4), pytest.raises(dpbnn.BudgetError):
        Ledger.open(ledger.plan)


def test_a_run_is_charged_with_the_noise_that_it_draws():
    """A hotter chain is more private; the budget pays what the release says."""
    the_plan = PrivacyPlan(100, 20, 10, clip_norm=1.0, noise_multiplier=3.0, delta=1e-4)
    x, y = torch.zeros(100, 2), torch.zeros(100, dtype=torch.long)
    how = {"method": dpbnn.SGLD(0.001, temperature=20.0), "likelihood": dpbnn.Categorical(), "progress": False}
    with dpbnn.BudgetAccountant(epsilon=5, delta=1e-3) as budget:
        release = dpbnn.fit(nn.Linear(2, 2), x, y, plan=the_plan, **how)
    assert release.guarantee.plan != the_plan
    assert budget.charges == [JointCharge((release.guarantee.plan,))]


@pytest.mark.guarantees("Nothing is released from a ledger that was not opened.")
def test_nothing_is_released_from_a_ledger_that_was_not_opened():
    with pytest.raises(LedgerError, match="never charged; this is a bug, and nothing of this run must be used"):
        guarantee_of(completed(Ledger(plan(5.0, 2))))
    with pytest.raises(LedgerError, match="never charged"):
        Ledger(plan(5.0, 2, (0.1,))).buy("a bound", draw(1.0))


@pytest.mark.guarantees("Nothing is released before every step and every purchase of the plan is made.")
def test_nothing_is_released_before_every_step_and_every_purchase_of_the_plan_is_made():
    bought = {"a bound": 0.1, "a level": 0.2}
    ledger = Ledger.open(plan([(5.0, 2), (6.0, 1)], 3, (0.1, 0.2)), bought)
    for step in range(3):
        with pytest.raises(LedgerError, match=f"{3 - step} of the plan's 3 steps were not charged"):
            guarantee_of(ledger)
        ledger.enter(step, step)
    for missing in ("'a bound', 'a level' was", "'a level' was"):
        with pytest.raises(LedgerError, match=f"{missing} promised and not bought"):
            guarantee_of(ledger)
        ledger.buy(next(iter(bought)), draw(1.0))
        bought.pop(next(iter(bought)))
    assert guarantee_of(ledger).plan == ledger.plan
    assert ledger.settle().entries == (
        Entry("training", "Gaussian noise on a clipped sum", 5.0, 2, 1),
        Entry("training", "Gaussian noise on a clipped sum", 6.0, 1, 1),
        Entry("a bound", "a draw", 0.1, 1, 1),
        Entry("a level", "a draw", 0.2, 1, 1),
    )


@pytest.mark.parametrize("promised", [{}, {"a": 0.2}, {"a": 0.1, "b": 0.1}, {"a": 0.05, "b": 0.05}])
def test_a_plan_pays_for_exactly_what_is_bought(promised):
    with pytest.raises(LedgerError, match="was to buy"):
        Ledger.open(plan(5.0, 2, (0.1,)), promised)


def test_what_the_caller_has_bought_is_listed_as_such():
    ledger = completed(Ledger.open(plan(5.0, 2, (0.1, 0.1, 0.3), most=2)))
    assert guarantee_of(ledger).epsilon == pytest.approx(ledger.plan.epsilon(), abs=1e-4)
    assert ledger.settle().entries[1:] == (
        Entry("given by the caller", "bought elsewhere", 0.1, 2, 2),
        Entry("given by the caller", "bought elsewhere", 0.3, 1, 2),
    )
    with pytest.raises(LedgerError, match="'a bound' was to be bought and was not promised"):
        Ledger.open(plan(5.0, 2, (0.1,))).buy("a bound", draw(1.0))


@pytest.mark.guarantees("After it is settled nothing is released any more.")
def test_after_it_is_settled_nothing_is_released_any_more():
    ledger = completed(Ledger.open(plan(5.0, 2, (0.1,)), {"a bound": 0.1}))
    ledger.buy("a bound", draw(3.0))
    settled = ledger.settle()
    with pytest.raises(LedgerError, match="step 0 is beyond the plan"):
        ledger.enter(0, 0)
    assert ledger.buy("a bound", draw(4.0)) == 3.0
    assert ledger.settle() == settled


def test_a_run_is_resumed_before_anything_else_is_charged():
    ledger = Ledger.open(plan(5.0, 3))
    ledger.resume([(0, None), (0, 20)])
    assert ledger.holds(0, 20)
    assert ledger.charges == [(0, None), (0, 20)]
    with pytest.raises(LedgerError, match="after it has begun"):
        ledger.resume([(0, 10)])


@pytest.mark.guarantees("Nothing is released from a ledger that is not in order.")
def test_a_step_that_is_not_charged_stops_the_release(monkeypatch):
    x, y = torch.zeros(100, 2), torch.zeros(100, dtype=torch.long)
    how = {"method": dpbnn.SGD(0.1), "likelihood": dpbnn.Categorical(), "progress": False}
    enter = Ledger.enter
    monkeypatch.setattr(Ledger, "enter", lambda self, step, mark: step and enter(self, step, mark))
    with pytest.raises(LedgerError, match="step 0 was to be used and was not charged"):
        dpbnn.fit(nn.Linear(2, 2), x, y, plan=plan(5.0, 4), **how)


def test_a_run_is_paid_for_by_the_ledger_of_its_plan():
    from dpbnn.training.loop import train
    from dpbnn.training.run import prepared

    x, y = torch.zeros(100, 2), torch.zeros(100, dtype=torch.long)
    run = prepared(nn.Linear(2, 2), x, y, dpbnn.SGD(0.1), plan(5.0, 4), dpbnn.Categorical())
    with pytest.raises(LedgerError, match="the ledger of another plan"):
        run.begin(Ledger.open(plan(6.0, 4)))
    position = run.begin(Ledger(plan(5.0, 4)))
    train([position])
    with pytest.raises(LedgerError, match="never charged"):
        run.draft(position).release()


PLANS = [plan(4.0, 3, (0.1,), most=3), plan(5.0, 2, (0.2,), most=3)]
BOUGHT = [{"a bound": 0.1}, {"a bound": 0.2}]


@pytest.mark.guarantees("A search is charged once, for all fits and the choice.")
def test_a_search_is_charged_once_for_all_fits_and_the_choice():
    with dpbnn.BudgetAccountant(epsilon=20, delta=1e-4) as budget:
        search = SearchLedger(PLANS, BOUGHT, epsilon=9.0, delta=1e-5)
        assert budget.charges == [JointCharge(tuple(PLANS), 9.0)]
        for ledger, promised in zip(search.ledgers, BOUGHT, strict=True):
            completed(ledger)
            ledger.buy("a bound", draw(1.0))
            assert promised == ledger._purchases.promised
        search.choose(draw(1))
        guarantee_of(search.ledgers[1])
        assert len(budget.charges) == 1
    assert search.cost.epsilon_of_fits == composed_epsilon(PLANS, 1e-5)
    with pytest.raises(LedgerError, match=r"were to cost 0\.5"):
        SearchLedger(PLANS, BOUGHT, epsilon=0.5, delta=1e-5)


def test_a_search_that_could_not_choose_is_refused_before_it_is_charged(monkeypatch):
    monkeypatch.setattr(selection, "find_spec", lambda _: None)
    with dpbnn.BudgetAccountant(epsilon=20, delta=1e-4) as budget:
        with pytest.raises(dpbnn.DpbnnError, match="needs OpenDP, which is not installed: pip install"):
            SearchLedger(PLANS, BOUGHT, epsilon=9.0, delta=1e-5)
        assert not budget.charges


@pytest.mark.guarantees("A person who chooses is charged for all rows.")
def test_a_person_who_chooses_is_charged_for_all_rows():
    asked = []
    search = SearchLedger(PLANS, BOUGHT, epsilon=9.0, delta=1e-5)
    search.choose(lambda permit: asked.append(permit) or (permit.spend("a choice") and 1))
    assert asked[0].rows_per_person == 3
    assert 3 * asked[0].epsilon == pytest.approx(9.0)


@pytest.mark.guarantees("Nothing of a candidate is released before all candidates and the choice are settled.")
def test_nothing_of_a_candidate_is_released_before_all_candidates_and_the_choice_are_settled():
    search = SearchLedger(PLANS, BOUGHT, epsilon=9.0, delta=1e-5)
    first, second = search.ledgers
    completed(first).buy("a bound", draw(1.0))
    with pytest.raises(LedgerError, match="2 of the plan's 2 steps were not charged"):
        guarantee_of(first)
    completed(second).buy("a bound", draw(1.0))
    with pytest.raises(LedgerError, match="released before the choice"):
        guarantee_of(first)
    search.choose(draw(1))
    with pytest.raises(dpbnn.DpbnnError, match="adjacency of a search must be one of"):
        PrivacyGuarantee.for_ledger(first, Circumstances("replace_one"), random_source="a test")
    guarantee = guarantee_of(second)
    assert guarantee.epsilon == 9.0 > second.plan.epsilon()
    assert guarantee.plan == second.plan
    assert guarantee.remark == "of the whole search"
    assert "the grid of candidates does not depend on the private data" in guarantee.assumptions
    assert not any("is not covered" in text and "search" in text for text in guarantee.assumptions)
    assert PrivacyGuarantee.from_json(guarantee.to_json()) == guarantee
    assert second.settle().entries[-1] == Entry("the choice between the candidates", "a draw", 3.0, 1, 3)


def test_equal_candidates_are_one_line_that_counts_them():
    search = SearchLedger(PLANS[:1] * 2, BOUGHT[:1] * 2, epsilon=9.0, delta=1e-5)
    for ledger in search.ledgers:
        completed(ledger).buy("a bound", draw(1.0))
    search.choose(draw(0))
    assert [(own.purpose, own.count) for own in search.ledgers[0].settle().entries] == [
        ("training", 6),
        ("a bound", 2),
        ("the choice between the candidates", 1),
    ]


def test_a_guarantee_is_complete_when_it_is_made():
    """Nobody amends one: what a front end has to say is there from the beginning."""
    ledger = completed(Ledger.open(plan(5.0, 2)))
    circumstances = Circumstances("zero_out", ("the labels are public",))
    made = PrivacyGuarantee.for_ledger(ledger, circumstances, random_source="a coin", voided_by=["a reason"])
    assert (made.adjacency, made.random_source, made.voided_by) == ("zero_out", "a coin", ("a reason",))
    assert made.assumptions[-1] == "the labels are public"
    expected = PrivacyGuarantee.for_plan(ledger.plan, adjacency="zero_out", assumptions=["the labels are public"])
    assert replace(made, random_source=expected.random_source, voided_by=()) == expected
    with pytest.raises(dpbnn.DpbnnError, match="adjacency must be one of"):
        PrivacyGuarantee.for_ledger(ledger, Circumstances("nearby"), random_source="a coin")


@pytest.mark.guarantees("Every sum that has got its noise is charged before it is used, or dropped.")
def test_every_sum_that_has_got_its_noise_is_charged_before_it_is_used_or_dropped():
    ledger = Ledger.open(plan(5.0, 3))
    with pytest.raises(LedgerError, match="was not told of"):
        ledger.drop()
    ledger.made()
    with pytest.raises(LedgerError, match="before the one before it was charged"):
        ledger.made()
    with pytest.raises(LedgerError, match="step 0 was to be used and was not charged"):
        ledger.use(0, 7)
    ledger.enter(0, 7)
    ledger.use(0, 7)
    for step in (1, 2):
        ledger.enter(step, step)
    ledger.made()
    with pytest.raises(LedgerError, match="neither charged nor dropped"):
        ledger.settle()
    ledger.drop()
    ledger.settle()
    with pytest.raises(LedgerError, match="after the run"):
        ledger.made()


@pytest.mark.parametrize("times", [0, 2])
def test_a_step_whose_noise_is_drawn_twice_or_out_of_the_ledgers_sight_stops_the_run(monkeypatch, times):
    x, y = torch.zeros(100, 2), torch.zeros(100, dtype=torch.long)
    how = {"method": dpbnn.SGD(0.1), "likelihood": dpbnn.Categorical(), "progress": False}
    made = Ledger.made
    monkeypatch.setattr(Ledger, "made", lambda self: [made(self) for _ in range(times)])
    with pytest.raises(LedgerError, match="a sum was"):
        dpbnn.fit(nn.Linear(2, 2), x, y, plan=plan(5.0, 4), **how)
