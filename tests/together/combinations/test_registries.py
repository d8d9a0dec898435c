"""What is registered takes part by itself, and what nobody knows how to make says what to add."""

from dataclasses import dataclass, field

import pytest

import dpbnn
from dpbnn.methods import METHODS, MethodEntry
from dpbnn.models.likelihoods import LIKELIHOODS
from tests.together.combinations.checking import broken_in, check
from tests.together.combinations.covering import cover, targets
from tests.together.combinations.factors import BOUNDARY, factors, fast_cells, space
from tests.together.combinations.makers import FORMS, PRIORS, TARGETS, method_forms, prior_kinds


@dataclass(frozen=True)
class Halving(dpbnn.SGD):
    """A method like any other."""

    prior: dpbnn.models.priors.Prior = field(default_factory=dpbnn.models.priors.Flat)


@dataclass(frozen=True)
class Demanding(dpbnn.SGD):
    """A method that cannot be made without something of its own."""

    def __init__(self, learning_rate, something):
        super().__init__(learning_rate)


@dataclass(frozen=True)
class Poisson(dpbnn.Categorical):
    """A likelihood whose targets nobody here knows."""


@dataclass(frozen=True)
class Wide(dpbnn.models.priors.Flat):
    """A prior that needs more than its name."""

    reach: float = 1.0


def cells_with(factor, value):
    own = space()
    number = own.numbers[factor, value]
    return [cell for cell in cover(own, [t for t in targets(own, 2, BOUNDARY) if number in t]) if cell[factor] == value]


def test_a_registered_method_adds_cells_by_itself(monkeypatch, tmp_path):
    assert not any(cell["method"] == "halving" for cell in fast_cells())
    monkeypatch.setitem(METHODS, "halving", MethodEntry(f"{__name__}:Halving"))
    cells = cells_with("method", "halving")
    assert {cell["network"] for cell in cells} == set(factors()["network"])
    check(cells[0], tmp_path)
    assert "halving" in space().factors["method"]


def test_a_registered_method_that_cannot_be_made_says_what_to_add(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "demanding", MethodEntry(f"{__name__}:Demanding"))
    cells = cells_with("method", "demanding")
    (found,) = broken_in(cells[0], tmp_path)
    assert "METHODS has 'demanding', which cannot be made with" in found
    assert "add its arguments to FORMS in tests/together/combinations/makers.py" in found
    monkeypatch.setitem(FORMS, "demanding", {"demanding": {"something": 1}})
    (tmp_path / "with").mkdir()
    check(cells[0], tmp_path / "with")


def test_a_registered_likelihood_adds_cells_that_say_what_to_add(monkeypatch, tmp_path):
    monkeypatch.setitem(LIKELIHOODS, "Poisson", Poisson)
    own = space()
    (cell,) = cover(own, [(own.numbers["likelihood", "Poisson"],)])
    (found,) = broken_in(cell, tmp_path / "without")
    assert "LIKELIHOODS has 'Poisson', and nobody knows what its targets look like" in found
    assert "add them to TARGETS in tests/together/combinations/makers.py" in found
    monkeypatch.setitem(TARGETS, "Poisson", TARGETS["Categorical"])
    (tmp_path / "with").mkdir()
    check(cell, tmp_path / "with")


def test_a_further_prior_adds_cells_that_say_what_to_add(monkeypatch, tmp_path):
    monkeypatch.setitem(dpbnn.models.priors.PRIORS, "Wide", Wide)
    own = space()
    (cell,) = cover(own, [(own.numbers["prior", "Wide"],)])
    (found,) = broken_in(cell, tmp_path)
    assert "The registry of priors has 'Wide'" in found
    assert "add it to PRIORS in tests/together/combinations/makers.py" in found


def test_all_that_is_registered_is_among_the_cells_and_can_be_made():
    cells = fast_cells()
    assert {method_forms()[cell["method"]] for cell in cells} == set(METHODS)
    assert {cell["likelihood"] for cell in cells} >= set(LIKELIHOODS)
    assert {cell["prior"] for cell in cells} == set(prior_kinds()) == set(PRIORS)
    assert set(TARGETS) == set(LIKELIHOODS)


@pytest.mark.parametrize("table", [FORMS, TARGETS])
def test_the_tables_hold_nothing_that_is_not_registered(table):
    assert set(table) <= set(METHODS) | set(LIKELIHOODS)
