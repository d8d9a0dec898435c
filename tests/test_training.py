"""The loop: hard stop, nothing visible without noise, resume as if nothing had happened, bad input refused early."""

import json
import os
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpbnn
from dpbnn import training
from dpbnn.checkpoint import Checkpoint
from dpbnn.stepping import eager, work
from dpbnn.types import ClippedSum, NoisySum

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
        from dpbnn.stepping import eager
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


def test_numpy_arrays_and_a_data_set_size_that_differs_are_fine():
    assert fit(X.double().numpy(), Y.numpy().astype(np.int16)).guarantee.plan.dataset_size == N
    assert fit(X[:10], Y[:10]).guarantee.plan.dataset_size == N
    assert fit(X[:0], Y[:0]).guarantee.plan.dataset_size == N


def test_a_bfloat16_model_keeps_its_weights_in_float32():
    release = fit(model=network().bfloat16())
    assert all(values.dtype == torch.float32 for values in release.posterior.weights.values())
    assert release.predict(X).probabilities.shape == (N, 3)


# --- resume -----------------------------------------------------------------------------------------------------------


class Interrupt(Exception):
    pass


def fit_interrupted(monkeypatch, where, at, **options):
    """A run that breaks off at the given call of one of the loop's own functions."""
    module = {"fingerprint": training, "clip_and_sum": work}.get(where, eager)
    original, calls = getattr(module, where), [0]

    def interrupted(*args, **kwargs):
        calls[0] += 1
        if calls[0] == at:
            raise Interrupt
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, where, interrupted)
        with pytest.raises(Interrupt):
            fit(**options)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@pytest.mark.parametrize(
    ("where", "at"), [("clip_and_sum", 1), ("clip_and_sum", 8), ("add_noise", 8), ("fingerprint", 20)]
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_resumed_run_ends_as_an_uninterrupted_one(monkeypatch, tmp_path, where, at, seconds, optimizer):
    options = {"method": dpbnn.SGD(learning_rate=0.1, optimizer=optimizer), "model": network(0.3)}
    expected = fit(**options)
    options |= {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=seconds)}
    fit_interrupted(monkeypatch, where, at, **options)
    assert (tmp_path / "run").exists()
    release = fit(**options)
    assert same_weights(release, expected)
    assert release.settings["releases_charged"] == expected.settings["releases_charged"] == 20
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_own_key(monkeypatch, tmp_path):
    """The key of the interrupted run comes from its checkpoint; a second interruption changes nothing either."""
    options = {"checkpoint": tmp_path / "run", "unsafe_seed": None}
    for at in (5, 4):
        fit_interrupted(monkeypatch, "clip_and_sum", at, **options)
    release = fit(**options)
    assert release.settings["releases_charged"] == 20
    assert release.guarantee.voided_by == ()


def test_a_killed_run_resumes(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, signal, torch, dpbnn
        from dpbnn.stepping import work
        original, calls = work.clip_and_sum, []
        def kill(*args, **kwargs):
            calls.append(1)
            if len(calls) == 12:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)
        work.clip_and_sum = kill
        import sys; sys.path.insert(0, {str(os.getcwd())!r})
        from tests.test_training import fit
        fit(checkpoint={str(tmp_path / "run")!r})
        """
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
        ).returncode
        == -9
    )
    release = fit(checkpoint=tmp_path / "run")
    assert same_weights(release, fit())
    assert release.settings["releases_charged"] == 20


def test_a_repeated_step_that_comes_out_differently_is_dropped_and_charged_again_with_fresh_noise(
    monkeypatch, tmp_path
):
    """Another machine, on which the last bits differ: the same noise on another sum must never be used."""
    options = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=1000.0)}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = Checkpoint(tmp_path / "run").read().key
    assert len(Checkpoint(tmp_path / "run").charges()) == 8
    updates, keys = [], []
    original_clip, original_noise, original_update = work.clip_and_sum, eager.add_noise, dpbnn.SGD.update

    def other_bits(*arguments, **options):
        clipped = original_clip(*arguments, **options)
        return ClippedSum(
            {name: values * (1 + 1e-6) for name, values in clipped.gradients.items()}, clipped.sensitivity
        )

    def noted_noise(clipped, noise_multiplier, randomness, step):
        keys.append((step, randomness.key))
        return original_noise(clipped, noise_multiplier, randomness, step)

    def noted_update(self, state, noisy, step):
        updates.append(step)
        return original_update(self, state, noisy, step)

    monkeypatch.setattr(work, "clip_and_sum", other_bits)
    monkeypatch.setattr(eager, "add_noise", noted_noise)
    monkeypatch.setattr(dpbnn.SGD, "update", noted_update)
    release = fit(**options)
    assert keys[0] == (0, first_key)  # comes out differently, and is dropped
    assert [step for step, key in keys if key != first_key] == list(range(20))
    assert len({key for _, key in keys}) == 2
    assert release.settings["releases_charged"] == 20
    assert updates == list(range(12))  # 8 were charged before, 12 now: the plan's 20 are spent, and the rest is dropped
    assert "unsafe_seed" in str(release.guarantee)


def test_the_fresh_key_is_on_disk_before_the_old_marks_are_forgotten(monkeypatch, tmp_path):
    """Interrupted in between, the old key with no marks would let its noise be used again on another sum."""
    options = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=1000.0)}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = Checkpoint(tmp_path / "run").read().key
    original = work.clip_and_sum

    def other_bits(*arguments, **settings):
        clipped = original(*arguments, **settings)
        return ClippedSum({name: g * (1 + 1e-6) for name, g in clipped.gradients.items()}, clipped.sensitivity)

    def interrupted(self, step, mark):
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(work, "clip_and_sum", other_bits)
        patch.setattr(Checkpoint, "note", interrupted)
        with pytest.raises(Interrupt):
            fit(**options)
    assert Checkpoint(tmp_path / "run").read().key != first_key


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"x": X + 1e-6}, "the data"),
        ({"x": X[:-1], "y": Y[:-1]}, "the data"),
        ({"y": (Y + 1) % 3}, "the data"),
        ({"model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))}, "the model"),
        ({"the_plan": plan(noise=0.9)}, "the plan"),
        ({"the_plan": plan(steps=21)}, "the plan"),
        ({"method": dpbnn.SGD(learning_rate=0.2)}, "the method"),
    ],
)
def test_a_checkpoint_of_other_data_model_or_plan_is_refused(monkeypatch, tmp_path, change, what):
    fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    with pytest.raises(dpbnn.DpbnnError, match=f"belongs to another run: {what} changed"):
        fit(checkpoint=tmp_path / "run", **change)
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())


def test_checkpoint_files_are_readable_by_their_owner_alone_and_hold_no_data(monkeypatch, tmp_path):
    before = os.umask(0)
    try:
        fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    files = list((tmp_path / "run").iterdir())
    assert {file.name for file in files} == {"state", "journal"}
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(X.numpy()[0].tobytes() not in file.read_bytes() for file in files)


def test_a_state_that_was_cut_off_in_writing_leaves_the_one_before_whole(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(checkpoint_seconds=0.0)}
    original = torch.save

    def cut_off(values, file):
        original(values, file)
        if values["step"] == 6:
            file.truncate(100)
            raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", cut_off)
        with pytest.raises(Interrupt):
            fit(**options)
    assert same_weights(fit(**options), fit())


def test_a_folder_that_is_no_checkpoint_or_damaged_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(dpbnn.DpbnnError, match="is no checkpoint"):
        fit(checkpoint=tmp_path / "other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state").write_bytes(b"nonsense")
    with pytest.raises(dpbnn.DpbnnError, match="cannot be read"):
        fit(checkpoint=tmp_path / "damaged")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(N, 5)}, "do not fit the model"),
        ({"y": Y + 1}, r"Labels must lie in 0 to 2, the model's 3 classes, got others;"),
        ({"y": Y - 1}, "Labels must lie in 0 to 2"),
        ({"y": Y.float()}, "integer labels"),
        ({"x": X[:-1]}, "one row per record, got different numbers"),
        ({"model": nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))}, "BatchNorm1d '0' mixes records"),
        ({"model": lambda x: x}, "model must be a torch.nn.Module"),
        ({"model": nn.Sequential()}, "model must be a module with parameters"),
        ({"method": dpbnn.SGD}, "method must be a method such as"),
        ({"likelihood": dpbnn.Categorical}, "likelihood must be a Likelihood"),
        ({"the_plan": 1.0}, "plan must be a PrivacyPlan"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used"),
        ({"public_data": X}, r"public_data must be a pair \(X, y\)"),
        ({"public_data": (X, Y + 5)}, "Labels must lie in 0 to 2"),
    ],
)
def test_bad_input_gets_one_clear_error_before_any_budget_is_spent(monkeypatch, change, message):
    releases = Releases(monkeypatch)
    with pytest.raises(dpbnn.DpbnnError, match=message):
        fit(**change)
    assert releases.steps == []


def test_execution_is_validated():
    for arguments in ({"micro_batch_size": 0}, {"dataset_workers": -1}, {"checkpoint_seconds": -1.0}):
        with pytest.raises(dpbnn.DpbnnError):
            dpbnn.Execution(**arguments)


def test_a_run_without_privacy_says_so():
    release = fit(the_plan=dpbnn.PrivacyPlan.without_privacy(dataset_size=N, batch_size=15, steps=5), unsafe_seed=None)
    assert "no privacy guarantee" in str(release.guarantee)
    assert json.loads(release.guarantee.to_json())["epsilon"] is None


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.5}, "must not lower the plan's noise"),
        ({"noise_multiplier": ((2.0, 10), (0.99, 10))}, "must not lower the plan's noise"),
        ({"batch_size": 5}, "must change the plan's noise alone"),
        ({"clip_norm": 2.0}, "must change the plan's noise alone"),
        ({"steps": 10, "noise_multiplier": 3.0}, "must change the plan's noise alone"),
    ],
)
def test_a_method_may_raise_the_plans_noise_and_change_nothing_else(change, words):
    class Greedy(dpbnn.SGD):
        def plan_for(self, plan):
            return replace(plan, **change)

    with pytest.raises(dpbnn.DpbnnError, match=words):
        fit(method=Greedy(0.1))


def test_noise_that_a_method_raises_is_drawn_and_charged(monkeypatch):
    class Cautious(dpbnn.SGD):
        def plan_for(self, plan):
            return replace(plan, noise_multiplier=((2.0, 5), (3.0, 15)))

    drawn, original = [], eager.add_noise
    monkeypatch.setattr(eager, "add_noise", lambda c, noise, r, s: drawn.append(noise) or original(c, noise, r, s))
    release = fit(method=Cautious(0.1))
    assert drawn == [2.0] * 5 + [3.0] * 15
    assert release.guarantee.plan.noise_levels == ((2.0, 5), (3.0, 15))
    assert release.guarantee.epsilon < fit().guarantee.epsilon


def test_checkpoints_that_take_long_to_write_are_written_less_often(monkeypatch, tmp_path):
    from dpbnn import checkpoint as module

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    folder = Checkpoint(tmp_path / "run")
    assert folder.is_due(10)

    def slow(descriptor, fsync=module.os.fsync):
        now[0] += 3.0  # seconds

    monkeypatch.setattr(module.os, "fsync", slow)
    folder.write(module.Saved(b"key", "source", 0, {}, {}))
    for later, due in [(9, False), (11, False), (59, False), (61, True)]:
        now[0] = 3.0 + later
        assert folder.is_due(10) is due
    now[0] = 3.1
    assert folder.is_due(0)


@pytest.mark.parametrize(
    "returned",
    [torch.ones(2, 3), (torch.ones(2, 1), torch.ones(2, 1)), dpbnn.likelihoods.Probabilities(torch.ones(3, 1))],
)
def test_a_likelihood_that_cannot_predict_is_refused_before_training(returned):
    class Broken(dpbnn.HomoscedasticGaussian):
        def predictive(self, outputs, weights):
            return returned

    with pytest.raises(dpbnn.DpbnnError, match=r"Broken.predictive must return Probabilities or Moments"):
        fit(y=X[:, :1], model=nn.Linear(6, 1), likelihood=Broken(1.0))


def test_a_run_that_diverges_is_warned_of():
    with pytest.warns(dpbnn.DpbnnWarning, match="has diverged"):
        release = fit(method=dpbnn.SGD(1e12))
    assert "has diverged" in release.settings["warnings"][0]
    with pytest.raises(dpbnn.DpbnnError, match="from 1e-30"):
        dpbnn.SGD(1e300)


def test_settings_that_are_known_to_mislead_are_warned_of_before_training(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(eager, "add_noise", stop)
    with pytest.warns(dpbnn.DpbnnWarning, match="divided by 60"), pytest.raises(KeyboardInterrupt):
        fit(method=dpbnn.SGLD(5.0))
    for likelihood in (dpbnn.HomoscedasticGaussian(), dpbnn.HeteroscedasticGaussian()):
        model = nn.Linear(6, 1 if isinstance(likelihood, dpbnn.HomoscedasticGaussian) else 2)
        with pytest.warns(dpbnn.DpbnnWarning, match="A learned noise level"), pytest.raises(KeyboardInterrupt):
            fit(y=X[:, :1], model=model, likelihood=likelihood)
    with pytest.raises(KeyboardInterrupt):  # a given noise level, and a clip norm that is large enough: nothing to say
        fit(y=X[:, :1], model=nn.Linear(6, 1), likelihood=dpbnn.HomoscedasticGaussian(0.5))
    with pytest.raises(KeyboardInterrupt):
        fit(y=X[:, :1], model=nn.Linear(6, 1), likelihood=dpbnn.HomoscedasticGaussian(), the_plan=plan(clip_norm=8.0))


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
