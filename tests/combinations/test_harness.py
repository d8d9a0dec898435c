"""The harness notices what it is there for: a bug is planted, and the invariant that it breaks says so.

A cell that cannot fail would be worth nothing. Bugs of `tests.audit.planted` are used again; those that only many draws
can show, such as noise that is uniform, are the audit's.
"""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import dpbnn
from dpbnn import training
from dpbnn.clipping import objective
from dpbnn.privacy import bounds
from dpbnn.privacy.randomness import Randomness
from dpbnn.sklearn import estimator
from dpbnn.stepping import eager, work
from tests.audit import planted
from tests.combinations.checking import broken_in, check
from tests.combinations.factors import factors

USUAL = {name: values[0] for name, values in factors().items()}
RESUMED = {"checkpoint": "interrupted"}
BY_ESTIMATOR = {"entry": "estimator, bought bounds", "records": "arrays"}


def with_bug(name):
    return next(bug.plant for bug in planted.BUGS if bug.name == name)


def around(owner, name, change):
    """Patch a function by what `change` makes of it and its arguments."""

    def plant(patch):
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **further: change(original, *given, **further))

    return plant


def joint_gradients_clipped_apart(clip, checked, where, *arguments, **how):
    """Means and spreads each to the whole clip norm."""
    found = clip(checked, where, *arguments, **how)
    return replace(
        found, gradients={name: values * torch.tensor(2.0).sqrt() for name, values in found.gradients.items()}
    )


def number_of_records_in_a_warning(release, run, *arguments):
    warnings.warn(f"{len(run.work.records)} records", dpbnn.DpbnnWarning, stacklevel=2)
    return release(run, *arguments)


def hook_left_behind(outputs, own, *arguments, **how):
    own.model.register_forward_hook(lambda *_: None)
    return outputs(own, *arguments, **how)


def global_draws(release, *arguments):
    torch.rand(1)
    np.random.rand()  # noqa: NPY002 - the generator that everybody shares
    random.random()
    return release(*arguments)


def coarse_products_left_on(release, *arguments):
    torch.set_float32_matmul_precision("medium")
    return release(*arguments)


def bounds_bought_twice(bounds_of, *arguments):
    bounds_of(*arguments)
    return bounds_of(*arguments)


def half_the_noise_of_a_quantile(quantile, values, share, epsilon, candidates):
    return quantile(values, share, 2 * epsilon, candidates)


BUGS = {
    "noise halved": (with_bug("noise halved"), {}, "the ledger"),
    "noise drawn once and used again": (with_bug("noise drawn once and used again"), {}, "the ledger"),
    "a step without noise": (with_bug("a step without noise"), {}, "the ledger"),
    "no noise on empty batches": (with_bug("no noise on empty batches"), {"batch": "mostly empty"}, "the ledger"),
    "noise on weights, not on biases": (with_bug("noise on weights, not on biases"), {}, "the ledger"),
    "mean taken before the noise": (with_bug("mean taken before the noise"), {}, "the ledger"),
    "divided by the batch that came": (with_bug("divided by the size of the batch that came"), {}, "the ledger"),
    "no clipping": (with_bug("no clipping"), {"rows": "3"}, "one person"),
    "clip norm for each layer": (with_bug("clip norm for each layer instead of all together"), {}, "one person"),
    "clipping left out for the first": (with_bug("clipping left out for the first record"), {}, "equals the plain"),
    "the prior inside the clip": (with_bug("the prior's gradient inside the clip"), {}, "equals the plain truth"),
    "NaN let through": (with_bug("NaN let through"), {}, "equals the plain truth"),
    "clipped apart": (
        around(work, "clip_and_sum", joint_gradients_clipped_apart),
        {"method": "bbp joint 3", "rows": "3"},
        "one person",
    ),
    "one record counted twice": (with_bug("one record counted twice"), {}, "batches are those"),
    "batches cut": (with_bug("batches cut at the expected size"), {}, "batches are those"),
    "sums in the update": (with_bug("sums without noise in the update"), {}, "nothing is visible"),
    "values in the log": (with_bug("values without noise in the log"), {}, "nothing is visible"),
    "a warning that counts": (
        around(training.Run, "release", number_of_records_in_a_warning),
        {},
        "nothing is visible",
    ),
    "a hook left behind": (around(objective.Objective, "outputs", hook_left_behind), {}, "everything else"),
    "global draws": (around(training.Run, "release", global_draws), {}, "everything else"),
    "coarse products left on": (around(training.Run, "release", coarse_products_left_on), {}, "everything else"),
    "a resumed run forgets what was spent": (
        with_bug("a resumed run forgets what was spent"),
        RESUMED,
        "a resumed run",
    ),
    "noise for the journal alone": (
        with_bug("noise only on what is written to a checkpoint"),
        {"checkpoint": "uninterrupted"},
        "a resumed run",
    ),
    "bounds bought twice": (around(bounds.Purchase, "bounds_of", bounds_bought_twice), BY_ESTIMATOR, "the ledger"),
    "too little noise": (around(bounds, "quantile", half_the_noise_of_a_quantile), BY_ESTIMATOR, "the ledger"),
    "all rows of a person": (
        around(estimator, "kept_rows", lambda _, people, most: np.arange(len(people))),
        BY_ESTIMATOR | {"rows": "3"},
        "nobody counts",
    ),
}  # fmt: skip


@pytest.fixture
def _settings_of_torch():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.planted
@pytest.mark.usefixtures("_settings_of_torch")
@pytest.mark.parametrize(("plant", "values", "expected"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_noticed(monkeypatch, tmp_path, plant, values, expected):
    plant(monkeypatch)
    found = []
    for prior in ["Gaussian"] if "entry" in values else factors()["prior"]:  # the person, and the crash, differ by cell
        (tmp_path / prior).mkdir()
        found += broken_in(USUAL | values | {"prior": prior}, tmp_path / prior)
        if any(text.startswith(f"broken: {expected}") for text in found):
            return
    pytest.fail(f"not noticed: {found}")


@pytest.mark.parametrize(
    "values", [{}, {"method": "bbp joint 3", "rows": "3"}, RESUMED, {"batch": "mostly empty"}], ids=str
)
def test_without_a_bug_nothing_is_noticed(tmp_path, values):
    assert broken_in(USUAL | values, tmp_path) == []


def test_a_failure_names_the_invariant_and_the_combination(monkeypatch, tmp_path):
    around(eager, "add_noise", lambda add, sums, noise, *how: add(sums, noise / 2, *how))(monkeypatch)
    with pytest.raises(pytest.fail.Exception) as failure:
        check(USUAL, tmp_path)
    text = str(failure.value)
    assert "broken: the ledger equals the plan: step 0: the noise is scaled by 0.5, not by 1" in text
    assert all(f"{factor}={value}" in text for factor, value in USUAL.items())


def test_what_the_library_raises_is_said_with_its_place(monkeypatch, tmp_path):
    def broken(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(Randomness, "add_normals", broken)
    (found,) = broken_in(USUAL, tmp_path)
    assert "RuntimeError('out of order')" in found
    assert "test_harness.py, line" in found
