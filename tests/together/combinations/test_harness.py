"""The harness notices what it is there for: a bug is planted, and the invariant that it breaks says so.

A cell that cannot fail would be worth nothing. What only many draws can show, such as noise that is uniform, or that
batches are no Poisson samples, is left to the audit.
"""

import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import dpbnn
from dpbnn.clipping import engines, gradient
from dpbnn.clipping.forms.per_record import Dense
from dpbnn.data.records import InMemoryRecords
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.queries import bounds
from dpbnn.sklearn import estimator
from dpbnn.training import fit as training
from dpbnn.training import position
from dpbnn.training.run import Run
from dpbnn.training.steps import eager
from tests.together.combinations.checking import broken_in, check
from tests.together.combinations.factors import factors

USUAL = {name: values[0] for name, values in factors().items()}
RESUMED = {"checkpoint": "interrupted"}
BY_ESTIMATOR = {"entry": "estimator, bought bounds", "records": "arrays"}


def around(owner, name, change):
    """Patch a function by what `change` makes of it and its arguments."""

    def plant(patch):
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **further: change(original, *given, **further))

    return plant


def with_noise(change):
    """Patch the noise multiplier; `change` gets it with the sums and the step."""
    return around(
        eager, "add_noise", lambda add, sums, noise, chance, step: add(sums, change(noise, sums, step), chance, step)
    )


def scaled(sums, factor):
    return replace(sums, gradients={name: values * factor for name, values in sums.gradients.items()})


def is_empty(sums):
    return not any(values.any() for values in sums.gradients.values())


def without_clipping(clip, checked, where, x, y, settings, **how):
    unclipped = clip(checked, where, x, y, replace(settings, clip_norm=1e9), **how)
    return replace(unclipped, sensitivity=settings.clip_norm)


def clipped_by_layer(clip, gradients, *arguments):
    for name, own in dict(gradients).items():
        clip({name: own}, *arguments)


def first_record_unclipped(factors_of, *arguments):
    found = factors_of(*arguments).clone()
    found[:1] = 1.0
    return found


def prior_inside_the_clip(patch):
    def planted(objective, weights, x, y):
        own = engines.ENGINES["vmap"](objective, weights, x, y)
        return {name: Dense(values.values + weights[name]) for name, values in own.items()}

    patch.setitem(engines.ENGINES, "book_keeping", planted)


def sums_in_the_update(patch):
    raw = {}
    with_noise(lambda noise, sums, _: raw.update(sums.gradients) or noise)(patch)

    def take(original, own, noisy, step):
        both = {name: values + 5 * raw[name].to(values) for name, values in noisy[0].gradients.items()}
        original(own, [replace(noisy[0], gradients=both)], step)

    around(eager.EagerSteps, "take", take)(patch)


def noise_for_the_journal_alone(take_both, own, step):
    with pytest.MonkeyPatch.context() as patch:
        with_noise(lambda noise, *_: 1e-9 * noise)(patch)
        take_both(own, step)


def first_twice(batches, *arguments):
    return ((torch.cat([x, x[:1]]), torch.cat([y, y[:1]])) for x, y in batches(*arguments))


def cut_off(batches, *arguments):
    return ((x[:9], y[:9]) for x, y in batches(*arguments))


def number_of_records_in_the_settings(release, run, *arguments, **further):
    found = release(run, *arguments, **further)
    return replace(found, settings={**found.settings, "records": len(run.work.records)})


def number_of_records_in_a_warning(release, run, *arguments, **further):
    warnings.warn(f"{len(run.work.records)} records", dpbnn.DpbnnWarning, stacklevel=2)
    return release(run, *arguments, **further)


def hook_left_behind(prepared, model, *arguments, **further):
    model.register_forward_hook(lambda *_: None)
    return prepared(model, *arguments, **further)


def global_draws(release, *arguments, **further):
    torch.rand(1)
    np.random.rand()  # noqa: NPY002 - the generator that everybody shares
    random.random()
    return release(*arguments, **further)


def coarse_products_left_on(release, *arguments, **further):
    torch.set_float32_matmul_precision("medium")
    return release(*arguments, **further)


def drawn_twice(made, *arguments):
    measurement = made(*arguments)
    return lambda values: (measurement(values), measurement(values))[0]


SUMS, LEDGER = "equals the plain truth", "the ledger equals the plan"
PERSON, SEEN, LEFT = "one person moves it", "nothing is visible", "everything else is untouched"
BUGS = {
    "noise halved": (with_noise(lambda noise, *_: noise / 2), {}, LEDGER),
    "noise used again": (around(Randomness, "add_normals", lambda add, *own: add(*own[:-1], 0)), {}, LEDGER),
    "a step without noise": (with_noise(lambda noise, _, step: noise if step else 1e-9 * noise), {}, LEDGER),
    "no noise on empty batches": (
        with_noise(lambda noise, sums, _: 1e-9 * noise if is_empty(sums) else noise),
        {"batch": "mostly empty"},
        LEDGER,
    ),
    "noise on weights, not on biases": (
        around(
            Randomness,
            "add_normals",
            lambda add, own, tensors, *how: add(own, [values for values in tensors if values.dim() > 1], *how),
        ),
        {},
        LEDGER,
    ),
    "mean before the noise": (
        around(eager, "add_noise", lambda add, sums, *how: add(scaled(sums, 0.1), *how)),
        {},
        LEDGER,
    ),
    "scaled after the noise": (around(eager, "add_noise", lambda add, *how: scaled(add(*how), 0.9)), {}, LEDGER),
    "no clipping": (around(eager, "clip_and_sum", without_clipping), {"rows": "3"}, PERSON),
    "clip norm for each layer": (around(gradient, "_clip_and_sum_one_part", clipped_by_layer), {}, PERSON),
    "sums of joint BBP that are longer by the square root of two": (
        around(eager, "clip_and_sum", lambda clip, *given, **how: scaled(clip(*given, **how), 2**0.5)),
        {"method": "bbp joint 3", "rows": "3"},
        PERSON,
    ),
    "the first record is not clipped": (around(gradient, "_factors", first_record_unclipped), {}, SUMS),
    "the prior inside the clip": (prior_inside_the_clip, {}, SUMS),
    "one record counted twice": (around(InMemoryRecords, "batches", first_twice), {}, "batches are those"),
    "batches cut off": (around(InMemoryRecords, "batches", cut_off), {}, "batches are those"),
    "sums in the update": (sums_in_the_update, {}, SEEN),
    "a setting that counts records": (around(Run, "draft", number_of_records_in_the_settings), {}, SEEN),
    "a warning that counts records": (around(Run, "draft", number_of_records_in_a_warning), {}, SEEN),
    "a hook left behind": (around(training, "prepared", hook_left_behind), {}, LEFT),
    "global draws": (around(Run, "draft", global_draws), {}, LEFT),
    "coarse products left on": (around(Run, "draft", coarse_products_left_on), {}, LEFT),
    "nothing is restored": (
        around(position, "load_state", lambda *_: None),
        RESUMED | {"method": "sgd"},
        "a resumed run",
    ),
    "noise for the journal alone": (
        around(eager.EagerSteps, "release_and_take", noise_for_the_journal_alone),
        {"checkpoint": "uninterrupted"},
        "a resumed run",
    ),
    "a bound drawn twice": (around(bounds, "_measurement", drawn_twice), BY_ESTIMATOR, LEDGER),
    "a bound with too little noise": (
        around(bounds, "_measurement", lambda made, share, epsilon, *how: made(share, 2 * epsilon, *how)),
        BY_ESTIMATOR,
        LEDGER,
    ),
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
@pytest.mark.parametrize(
    ("plant", "values", "expected"),
    [
        pytest.param(*bug, id=name, marks=[pytest.mark.slow] * (place % 2))
        for place, (name, bug) in enumerate(BUGS.items())
    ],
)
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
