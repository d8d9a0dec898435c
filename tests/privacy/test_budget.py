"""A budget of several fits: nothing gets beyond it."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

import dpbnn
from dpbnn import BudgetAccountant, BudgetError, PrivacyPlan
from dpbnn.privacy import budget as budgets
from dpbnn.privacy.budget import JointCharge, ancestor, composed_epsilon

SHAPE = {"dataset_size": 500, "batch_size": 100, "steps": 20, "clip_norm": 1.0, "delta": 1e-6}
HALF = PrivacyPlan.for_budget(epsilon=0.5, **SHAPE)


def train(plan=HALF):
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    torch_model = dpbnn.networks.MLP(3, [], 2)
    y = (x[:, 0] > 0).astype(np.int64)
    return dpbnn.fit(
        torch_model, x, y, method=dpbnn.SGD(0.1), plan=plan, likelihood=dpbnn.Categorical(), progress=False
    )


def test_epsilons_and_deltas_add_up_and_the_fit_beyond_is_refused():
    with BudgetAccountant(epsilon=1.2, delta=1e-5) as budget:
        train()
        train()
        assert budget.spent() == pytest.approx((2 * HALF.epsilon(), 2e-6))
        assert budget.remaining() == pytest.approx((1.2 - 2 * HALF.epsilon(), 8e-6))
        with pytest.raises(BudgetError, match=r"This would bring what is spent to epsilon 1\.5 .* left are 0\.2"):
            train()
        assert len(budget.charges) == 2
    train()
    assert len(budget.charges) == 2, "outside of it nothing is charged to it"


def test_delta_has_a_limit_too():
    with BudgetAccountant(epsilon=100, delta=1.5e-6):
        train()
        with pytest.raises(BudgetError, match="delta"):
            train()


@pytest.mark.guarantees("A fit that would go over is refused before anything but checks has looked at a record.")
def test_a_refused_fit_has_not_seen_a_record(monkeypatch):
    seen = []
    monkeypatch.setattr("dpbnn.training.steps.EagerSteps.release_and_take", lambda *_: seen.append(1))
    with BudgetAccountant(epsilon=0.4, delta=1e-5), pytest.raises(BudgetError):
        train()
    assert not seen


@pytest.mark.guarantees("What was charged stays charged, also where a fit fails.")
def test_what_fails_stays_charged(monkeypatch):
    def broken(*_):
        raise RuntimeError("power cut")

    monkeypatch.setattr("dpbnn.training.steps.EagerSteps.release_and_take", broken)
    with BudgetAccountant(epsilon=1.2, delta=1e-5) as budget:
        with pytest.raises(RuntimeError, match="power cut"):
            train()
        assert len(budget.charges) == 1


def test_many_fits_at_once_are_all_charged_or_none():
    x = np.zeros((500, 3), dtype=np.float32)
    setup = dpbnn.Setup(dpbnn.networks.MLP(3, [], 2), dpbnn.SGD(0.1), HALF, dpbnn.Categorical())
    with BudgetAccountant(epsilon=1.2, delta=1e-5) as budget:
        dpbnn.fit_many([setup, setup], x, np.zeros(500, dtype=np.int64), progress=False)
        assert budget.charges == [JointCharge((HALF, HALF))]
    with BudgetAccountant(epsilon=0.6, delta=1e-5) as budget:
        with pytest.raises(BudgetError):
            dpbnn.fit_many([setup, setup], x, np.zeros(500, dtype=np.int64), progress=False)
        assert not budget.charges


def test_the_filter_adds_up_divergences_at_one_order_that_the_first_charge_fixes():
    plans = [PrivacyPlan.for_budget(epsilon=own, **SHAPE) for own in (0.5, 0.2, 0.4, 0.3)]
    budget = BudgetAccountant(epsilon=1.4, delta=1e-5, composition="rdp")
    budget.charge(plans[0])
    order = budget._order
    for plan in plans[1:]:
        budget.charge(plan)
    assert budget._order == order
    peer = RdpAccountant([order])
    for plan in plans:
        peer.compose(plan.dp_event())
    assert budget.spent()[0] == pytest.approx(peer.get_epsilon(1e-5), rel=1e-6)
    assert budget.spent()[0] < sum(plan.epsilon() for plan in plans)
    with pytest.raises(BudgetError):
        budget.charge(*(plans * 5))


def test_the_filter_is_never_below_the_best_order_known_afterwards():
    plans = [PrivacyPlan.for_budget(epsilon=own, **SHAPE) for own in (0.5, 0.1, 0.1)]
    budget = BudgetAccountant(epsilon=3, delta=1e-5, composition="rdp")
    for plan in plans:
        budget.charge(plan)
    assert budget.spent()[0] >= composed_epsilon(plans, 1e-5) * (1 - 1e-9)


def test_plans_fixed_beforehand_compose_as_dp_accounting_has_it():
    plans = [HALF, PrivacyPlan.for_budget(epsilon=0.3, **SHAPE | {"batch_size": 500})]
    peer = RdpAccountant()
    for plan in plans:
        peer.compose(plan.dp_event())
    assert composed_epsilon(plans, 1e-5) == pytest.approx(peer.get_epsilon(1e-5), rel=0.02)


def test_what_is_fixed_at_once_costs_what_it_does_together_and_others_pay_for_their_own():
    four = JointCharge((HALF,) * 4)
    epsilon, delta = four.cost
    assert delta == HALF.delta
    assert epsilon == composed_epsilon([HALF] * 4, HALF.delta) < 4 * HALF.epsilon()
    assert JointCharge((HALF,) * 4, epsilon_of_others=1.9).cost == (max(epsilon, 1.9), delta)
    assert JointCharge((HALF,)).cost == (HALF.epsilon(), HALF.delta)
    for order in (1.5, 4.0, 40.0):
        alone = JointCharge((HALF,)).divergence(order)
        assert four.divergence(order) == pytest.approx(4 * alone)
        assert JointCharge((HALF,), 5.0).divergence(order) > max(alone, 1.0)
    budget = BudgetAccountant(epsilon=2.0, delta=1e-5, composition="rdp")
    with pytest.raises(BudgetError):
        budget.charge(HALF, epsilon_of_others=50.0)


def test_what_cannot_be_counted_is_refused():
    budget = BudgetAccountant(epsilon=1, delta=1e-5)
    with pytest.raises(BudgetError, match="without privacy"):
        budget.charge(PrivacyPlan.without_privacy(dataset_size=10, batch_size=5, steps=1))
    budget.charge(PrivacyPlan.for_budget(epsilon=0.2, **SHAPE))
    with pytest.raises(dpbnn.DpbnnError, match="max_records_per_person must be 1"):
        budget.charge(PrivacyPlan.for_budget(epsilon=0.2, max_records_per_person=3, **SHAPE))
    with budget, pytest.raises(dpbnn.DpbnnError, match="inside another"), BudgetAccountant(1, 1e-5):
        pass
    for wrong in ((0, 1e-5, "basic"), (1, 0, "basic"), (1, 1e-5, "magic")):
        with pytest.raises(dpbnn.DpbnnError):
            BudgetAccountant(*wrong)


def test_threads_pay_from_the_same_budget():
    from concurrent.futures import ThreadPoolExecutor

    with BudgetAccountant(epsilon=1.2, delta=1e-5) as budget, ThreadPoolExecutor(3) as pool:
        found = [own.exception() for own in [pool.submit(train) for _ in range(3)]]
    assert len(budget.charges) == 2
    assert sum(isinstance(own, BudgetError) for own in found) == 1


def test_a_void_guarantee_is_not_counted_as_one():
    x, y = np.zeros((500, 3), dtype=np.float32), np.zeros(500, dtype=np.int64)
    how = {"method": dpbnn.SGD(0.1), "plan": HALF, "likelihood": dpbnn.Categorical(), "progress": False}
    with BudgetAccountant(epsilon=1.2, delta=1e-5), pytest.raises(BudgetError, match="void"):
        dpbnn.fit(dpbnn.networks.MLP(3, [], 2), x, y, unsafe_seed=1, **how)


def _spend_elsewhere(queue):
    try:
        train()
        queue.put("spent")
    except BudgetError as error:
        queue.put(str(error))


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_other_processes_do_not_pass_a_budget_by(start):
    context = multiprocessing.get_context(start)
    queue = context.Queue()
    with BudgetAccountant(epsilon=0.6, delta=1e-5):
        other = context.Process(target=_spend_elsewhere, args=(queue,))
        other.start()
    assert "cannot be counted by a BudgetAccountant" in queue.get(timeout=120)
    other.join()
    train()


def _tried(opens=False):
    try:
        with BudgetAccountant(epsilon=100.0, delta=1e-2) if opens else nullcontext():
            train()
    except BudgetError as error:
        return str(error)
    return "spent"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux tells")
@pytest.mark.parametrize(
    "start", ["fork", *(pytest.param(own, marks=pytest.mark.slow) for own in ("spawn", "forkserver"))]
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_that_are_older_than_a_budget_do_not_pass_it_by(start):
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.apply(_tried) == "spent"
        with BudgetAccountant(epsilon=0.6, delta=1e-5) as budget:
            for opens in (False, True):
                assert "cannot be counted by a BudgetAccountant" in pool.apply(_tried, (opens,))
            assert not budget.charges
        assert pool.apply(_tried) == "spent"


def _tried_twice(pipe):
    with BudgetAccountant(epsilon=100.0, delta=1e-2):
        for _ in range(2):
            pipe.recv()
            pipe.send(_tried())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux tells")
def test_a_budget_of_a_worker_does_not_pay_for_a_later_one_of_its_parent():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=_tried_twice, args=(there,))
    other.start()
    here.send("before")
    assert here.recv() == "spent"
    with BudgetAccountant(epsilon=0.6, delta=1e-5):
        here.send("under it")
        assert "cannot be counted by a BudgetAccountant" in here.recv()
    other.join()


def test_only_a_worker_is_sent_anything_and_not_whoever_reads_old_files():
    assert ancestor(os.getppid()) == os.getppid()
    for saved_by in (os.getpid(), 4_000_000, None):
        assert ancestor(saved_by) is None


def test_a_budget_leaves_nothing_open():
    def files():
        return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    before = files()
    with BudgetAccountant(epsilon=0.6, delta=1e-5):
        pass
    assert files() == before


def test_a_search_is_charged_what_it_claims():
    plans = (PrivacyPlan.for_budget(epsilon=0.7, **SHAPE),) * 2
    composed = composed_epsilon(plans, SHAPE["delta"])
    assert composed > 1.0
    assert JointCharge(plans, epsilon_of_others=1.5).cost == (1.5, SHAPE["delta"])


def test_of_two_threads_that_open_a_budget_one_is_refused(monkeypatch):
    """However slowly they look for other processes."""
    look, both = budgets.refuse_elsewhere, threading.Barrier(2)

    def slowly(*given):
        time.sleep(0.05)
        look(*given)

    monkeypatch.setattr(budgets, "refuse_elsewhere", slowly)

    def opened():
        both.wait()
        try:
            with BudgetAccountant(1.0, 1e-4):
                time.sleep(0.3)
        except dpbnn.DpbnnError as error:
            return str(error)
        return "opened"

    with ThreadPoolExecutor(2) as pool:
        found = [own.result() for own in [pool.submit(opened) for _ in range(2)]]
    assert sorted(text == "opened" for text in found) == [False, True]
    assert any("must not be opened inside another one" in text for text in found)
