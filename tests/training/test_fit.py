"""The loop: it stops where the plan ends, and nothing is visible without noise."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from dpbnn.training.steps import eager
from dpbnn.types import NoisySum

N = 60
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(N, 6, generator=GENERATOR), torch.arange(N) % 3


def network(dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def plan(steps=20, noise=1.0, **options):
    settings = {"dataset_size": N, "batch_size": 15, "clip_norm": 1.0, "delta": 1e-3}
    return dpbnn.PrivacyPlan(steps=steps, noise_multiplier=noise, **settings | options)


def fit(x=X, y=Y, model=None, the_plan=None, **options):
    settings = {
        "method": dpbnn.SGD(learning_rate=0.1, momentum=0.5),
        "likelihood": dpbnn.Categorical(),
        "unsafe_seed": 5,
    }
    return dpbnn.fit(network() if model is None else model, x, y, plan=the_plan or plan(), **settings | options)


def same_weights(first, second):
    pairs = zip(first.posterior.weights.values(), second.posterior.weights.values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class Releases:
    """Stands in for `add_noise` and remembers how often it was asked."""

    def __init__(self, monkeypatch, instead=None):
        self.steps, self.instead, original = [], instead, eager.add_noise

        def watched(clipped, noise_multiplier, randomness, step):
            self.steps.append(step)
            if self.instead is None:
                return original(clipped, noise_multiplier, randomness, step)
            return NoisySum({name: self.instead(values, step) for name, values in clipped.gradients.items()})

        monkeypatch.setattr(eager, "add_noise", watched)


@pytest.mark.guarantees("No step is taken beyond the plan.")
def test_no_step_is_taken_beyond_the_plan(monkeypatch):
    releases = Releases(monkeypatch)
    release = fit(the_plan=plan(steps=7))
    assert releases.steps == list(range(7))
    assert release.settings["releases_charged"] == 7


def test_two_runs_differ_unless_a_test_seeds_them_and_then_the_guarantee_is_void():
    first, second = fit(unsafe_seed=None, seed=1), fit(unsafe_seed=None, seed=1)
    assert not same_weights(first, second)  # `seed` reaches neither sampling nor noise
    assert first.guarantee.voided_by == ()
    seeded = fit()
    assert same_weights(seeded, fit())
    assert "no privacy guarantee" in str(seeded.guarantee)
    assert "unsafe_seed" in str(seeded.guarantee)


def test_every_step_gets_its_own_noise_and_clip_norm_from_the_runs(monkeypatch):
    seen = []

    def watched(clipped, noise_multiplier, randomness, step):
        seen.append((clipped.sensitivity, noise_multiplier))
        return NoisySum(dict(clipped.gradients))

    monkeypatch.setattr(eager, "add_noise", watched)
    fit(the_plan=plan(steps=5, noise=[(2.0, 3), (1.0, 2)], clip_norm=[(0.5, 1), (0.25, 4)]))
    assert seen == [(0.5, 2.0), (0.25, 2.0), (0.25, 2.0), (0.25, 1.0), (0.25, 1.0)]


@pytest.mark.guarantees("Everything visible depends on the records only through the noisy sums.")
@pytest.mark.parametrize("options", [{}, {"public_data": (X[:20].clone(), Y[:20].clone())}])
def test_everything_visible_depends_on_the_records_only_through_the_noisy_sums(monkeypatch, capfd, tmp_path, options):
    """With the releases replaced by constants, two neighbouring data sets must look exactly the same from outside."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Releases(monkeypatch, instead=lambda values, step: torch.full_like(values, 0.01 * step))
    larger = torch.cat([X, torch.full((1, 6), 1e6)]), torch.cat([Y, torch.tensor([1])])
    broken = X.clone()
    broken[3] = torch.nan
    visible = []
    for index, (x, y) in enumerate([(X, Y), larger, (X[:-1], Y[:-1]), (broken, Y), (X[:0], Y[:0])]):
        release = fit(x, y, progress=False, **options)
        release.save(tmp_path / str(index))
        files = {file.name: file.read_bytes() for file in (tmp_path / str(index)).iterdir()}
        visible.append((files, capfd.readouterr(), release.history, release.diagnostics, sorted(vars(release))))
    assert all(other == visible[0] for other in visible[1:])
    assert len(visible[0][2]) == (20 if options else 0)


def test_the_progress_bar_shows_steps_epsilon_and_public_measures_alone(tmp_path):
    """In a real terminal, with every release the same, the bar must not depend on the data."""
    script = textwrap.dedent(
        """
        import sys, torch, dpbnn
        from dpbnn.training.steps import eager
        from dpbnn.types import ClippedSum, NoisySum
        eager.add_noise = lambda c, s, r, step: NoisySum({k: torch.zeros_like(v) for k, v in c.gradients.items()})
        torch.manual_seed(0)
        x, y = torch.randn(60, 6), torch.arange(60) % 3
        plan = dpbnn.PrivacyPlan(dataset_size=60, batch_size=15, steps=20, clip_norm=1, noise_multiplier=1, delta=1e-3)
        dpbnn.fit(torch.nn.Linear(6, 3), x * float(sys.argv[1]), y, method=dpbnn.SGD(learning_rate=0.1), plan=plan,
                  likelihood=dpbnn.Categorical(), public_data=(x.clone(), y.clone()))
        """
    )
    shown = []
    for scale in ("1", "1000"):
        master, slave = os.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "140", "PYTHONWARNINGS": "error"}
        run = subprocess.Popen([sys.executable, "-c", script, scale], stderr=slave, env=environment)
        os.close(slave)
        text = b""
        try:  # read while it writes: on a slow machine it shows more than a terminal holds, and would wait
            while part := os.read(master, 65536):
                text += part
        except OSError:
            pass
        os.close(master)
        assert run.wait() == 0
        shown.append(text.decode())
    for text in shown:
        assert "20/20" in text
        assert "epsilon at most" in text
        assert "public accuracy" in text
        assert "loss" not in text
    last = [text[text.rindex("epsilon") :] for text in shown]
    assert last[0] == last[1]


def test_unsafe_diagnostics_show_what_has_no_noise_and_void_the_guarantee(tmp_path):
    release = fit(unsafe_diagnostics=True, unsafe_seed=None)
    assert len(release.diagnostics) == 20
    assert sum(entry["records"] for entry in release.diagnostics) > 0
    assert "unsafe_diagnostics" in str(release.guarantee)
    assert release.guarantee.voided_by
    release.save(tmp_path / "release")
    assert dpbnn.load(tmp_path / "release", network()).diagnostics == ()
    assert fit().diagnostics == ()


def test_the_callers_random_state_is_left_alone():
    model = network(0.5)
    before = torch.get_rng_state()
    fit(model=model)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_masks_are_secret():
    """Masks follow the secret key, not the user's seed nor torch's global one."""
    releases = []
    for _ in range(2):
        torch.manual_seed(0)
        releases.append(fit(model=network(0.5), seed=0, unsafe_seed=None, the_plan=plan(steps=1, noise=1e-9)))
    assert not same_weights(*releases)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_trains_as_memory_does(workers):
    execution = dpbnn.Execution(dataset_workers=workers)
    assert same_weights(fit(), fit(TensorDataset(X, Y), None, execution=execution))


def test_micro_batches_change_nothing_but_rounding():
    first, second = fit(), fit(execution=dpbnn.Execution(micro_batch_size=4))
    for a, b in zip(first.posterior.weights.values(), second.posterior.weights.values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_private_training_learns_something():
    torch.manual_seed(0)
    x = torch.randn(4000, 6)
    y = (x[:, 0] + x[:, 1] > 0).long()
    the_plan = dpbnn.PrivacyPlan.for_budget(
        epsilon=1.0, delta=1e-5, dataset_size=4000, batch_size=400, steps=100, clip_norm=1.0
    )
    release = dpbnn.fit(
        nn.Linear(6, 2), x, y, method=dpbnn.SGD(learning_rate=1.0), plan=the_plan, likelihood=dpbnn.Categorical()
    )
    assert float((release.predict(x).labels == y).float().mean()) > 0.95
    assert release.guarantee.epsilon <= 1.0


def test_the_generator_that_a_method_sees_does_not_tell_how_many_masks_were_drawn():
    seen = []

    class Curious(dpbnn.SGD):
        def update(self, state, noisy, step):
            seen.append(float(torch.rand(1)))
            return super().update(state, noisy, step)

    for records in (60, 7):
        fit(X[:records], Y[:records], model=network(dropout=0.5), method=Curious(0.1), seed=4)
    assert seen[:20] == seen[20:]
    assert len(set(seen)) == 20
