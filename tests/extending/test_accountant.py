"""An accountant from outside: it takes part in the tightest bound, and a guarantee says where it is from."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.errors import DpbnnError
from dpbnn.privacy.accountants import ACCOUNTANTS, Accountant, Accounting, bounds, foreign_module, register, unregister
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.settings import Settings
from dpbnn.privacy.statement import print_table, statement_of
from tests.extending import skeleton

FULL = dpbnn.PrivacyPlan(dataset_size=20, batch_size=20, steps=5, clip_norm=1.0, noise_multiplier=20.0, delta=1e-16)
"""At so small a delta PLD has no figure, and RDP is far from tight."""
SAMPLED = replace(FULL, batch_size=5, delta=1e-5)


@pytest.fixture
def exact():
    """Registered while the test runs."""
    module = skeleton("An accountant")
    if "exact" not in ACCOUNTANTS:
        register(module.EXACT)
    yield module
    unregister("exact")


@pytest.fixture
def registered():
    """Registers accountants for the time of the test."""
    names = []

    def add(name, compute, **settings):
        register(Accountant(name, name, compute, **{"is_bound": True} | settings))
        names.append(name)

    yield add
    for name in names:
        unregister(name)


def test_the_tightest_bound_is_the_new_one_where_it_is_tighter(exact):
    found = FULL.account()
    assert found.accountant == "exact"
    assert found.epsilon == FULL.epsilon("exact") < 0.96 * FULL.epsilon("rdp")
    unregister("exact")
    assert FULL.account().accountant == "rdp"
    register(exact.EXACT)


@pytest.mark.parametrize("adjacency", ["add_or_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("records", [1, 3])
def test_the_new_one_agrees_with_the_packages_own(exact, adjacency, records):
    plan = replace(FULL, delta=1e-5, max_records_per_person=records)
    assert plan.epsilon("exact", adjacency=adjacency) == pytest.approx(
        plan.epsilon("pld", adjacency=adjacency), rel=1e-3
    )


def test_where_it_has_no_bound_it_says_so_and_takes_no_part(exact):
    assert SAMPLED.account("exact").epsilon == math.inf
    assert "the closed form is for full batches" in SAMPLED.account("exact").remark
    assert SAMPLED.account() == SAMPLED.account("pld")
    assert PrivacyGuarantee.for_plan(SAMPLED).epsilon_by_accountant["exact"] == math.inf


@pytest.mark.guarantees("An accountant is not asked about charges that it does not cover.")
@pytest.mark.parametrize(
    ("change", "uncovered"),
    [
        ({"max_records_per_person": 2}, "several records of a person"),
        ({"pure_epsilons": (0.1,)}, "releases without delta beside the steps"),
        ({}, "adjacency 'replace_one'"),
    ],
)
def test_it_is_not_asked_about_what_it_does_not_say_that_it_covers(registered, change, uncovered):
    asked = []
    registered("careless", lambda charge: asked.append(charge) or Accounting(0.01, "careless"), is_quick=True)
    adjacency = "add_or_remove" if change else "replace_one"
    plan = replace(FULL, delta=1e-5, **change)
    found = plan.account("careless", adjacency=adjacency)
    assert (found.epsilon, asked) == (math.inf, [])
    assert uncovered in found.remark
    assert plan.account(adjacency=adjacency).accountant == "pld"


def test_noise_for_a_budget_is_calibrated_with_it(exact):
    calibrated = FULL.within(2.0)
    assert calibrated.account().accountant == "exact"
    assert 2.0 * (1 - 1e-4) < calibrated.epsilon() <= 2.0
    unregister("exact")
    assert FULL.within(2.0).noise_multiplier > 1.02 * calibrated.noise_multiplier
    register(exact.EXACT)


@pytest.fixture
def release(exact):
    torch.manual_seed(0)
    return dpbnn.fit(
        nn.Linear(2, 2),
        torch.randn(20, 2),
        torch.randint(2, (20,)),
        method=dpbnn.SGD(learning_rate=0.1),
        plan=FULL,
        likelihood=dpbnn.Categorical(),
    )


@pytest.mark.guarantees("An accountant that is not the package's own is called that.")
@pytest.mark.guarantees(
    "A guarantee that rests on an accountant from elsewhere says so, and what the package's own give."
)
def test_the_guarantee_of_a_fit_names_it_and_says_that_dpbnn_has_not_checked_it(release):
    guarantee = release.guarantee
    assert guarantee.accountant == "exact"
    assert guarantee.epsilon < guarantee.epsilon_by_accountant["rdp"]
    assert foreign_module("exact") == "extending_an_accountant"
    for text in (str(guarantee), " ".join(guarantee.assumptions)):
        assert "the accountant 'exact' of the module extending_an_accountant, which is not part of dpbnn" in text
        assert f"RDP gives {guarantee.epsilon_by_accountant['rdp']}" in text
    assert "EXACT is not dpbnn's" in guarantee.remark
    unsaid = PrivacyGuarantee.for_plan(SAMPLED)
    assert "part of dpbnn" not in str(unsaid)


def test_a_figure_for_replacing_that_rests_on_it_is_said_too(registered):
    """Also where epsilon itself is by one of the package's own."""

    def for_replacing(charge):
        return Accounting(0.01 if charge.adjacency == "replace_one" else math.inf, "mine")

    registered("mine", for_replacing, adjacencies=("replace_one",), is_quick=True)
    guarantee = PrivacyGuarantee.for_plan(SAMPLED)
    assert (guarantee.accountant, guarantee.epsilon_replace_one) == ("pld", 0.01)
    assert any("'mine'" in text and "'replace_one'" in text for text in guarantee.assumptions)


def test_a_release_that_rests_on_it_loads_where_it_is_registered_and_nowhere_else(release, tmp_path, exact):
    release.save(tmp_path / "release")
    assert dpbnn.load(tmp_path / "release", nn.Linear(2, 2)).guarantee == release.guarantee
    unregister("exact")
    with pytest.raises(DpbnnError, match=r"got 'exact'\. If it is one of yours, register it first"):
        dpbnn.load(tmp_path / "release", nn.Linear(2, 2))
    register(exact.EXACT)


def test_names_in_errors_and_tables_come_from_the_registry(exact, capsys):
    print_table(statement_of("sgd", Settings(FULL, None, None), ()))
    assert "epsilon by EXACT (bound)" in capsys.readouterr().out
    with pytest.raises(DpbnnError, match="accountant must be one of 'pld', 'rdp', 'gdp', 'exact', got 'no'"):
        FULL.epsilon("no")
    assert bounds() == ("pld", "rdp", "exact")


@pytest.mark.guarantees("No accountant takes the place of another.")
@pytest.mark.parametrize("name", ["pld", "gdp", "exact"])
def test_no_accountant_takes_the_place_of_another(exact, name):
    with pytest.raises(DpbnnError, match=f"a name of its own, got '{name}'"):
        register(replace(exact.EXACT, name=name))
    with pytest.raises(TypeError):
        ACCOUNTANTS[name] = exact.EXACT


def test_the_packages_own_cannot_be_taken_back():
    with pytest.raises(DpbnnError, match="accountant to unregister must be one of"):
        unregister("pld")


@pytest.mark.parametrize("wrong", [Accounting(-1.0, "mine"), Accounting(math.nan, "mine"), Accounting(1.0, "pld"), 0.5])
def test_what_cannot_be_an_epsilon_of_its_own_is_refused(registered, wrong):
    registered("mine", lambda charge: wrong, is_quick=True)
    with pytest.raises(DpbnnError, match="'mine' must give an Accounting of that name with an epsilon >= 0"):
        SAMPLED.epsilon()


def test_an_approximation_does_not_become_the_tightest(registered):
    registered("guess", lambda charge: Accounting(0.0, "guess"), is_bound=False)
    assert SAMPLED.account().accountant == "pld"
    assert "guess" not in json.loads(PrivacyGuarantee.for_plan(SAMPLED).to_json())["epsilon_by_accountant"]


def test_a_budget_is_charged_by_the_packages_own_accountants(registered):
    """A budget adds up many fits, and nowhere says which accountant each of them rests on."""
    plan = dpbnn.PrivacyPlan(1000, 100, 50, clip_norm=1.0, noise_multiplier=0.7, delta=1e-6)
    own = plan.epsilon()
    registered("hopeful", lambda charge: Accounting(0.01, "hopeful"))
    assert plan.epsilon() == 0.01
    budget = dpbnn.BudgetAccountant(2 * own, 1e-3)
    budget.charge(plan)
    assert budget.spent()[0] == own
    with pytest.raises(DpbnnError, match="This would bring what is spent to"):
        budget.charge(plan, plan)
