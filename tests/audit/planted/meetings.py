"""Bugs between parts that are right alone: CUDA graphs and caches, threads, workers, environments."""

import contextlib
import hashlib

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn._warn import muted
from dpbnn.clipping import gradient
from dpbnn.clipping.check import compatibility
from dpbnn.files import claim
from dpbnn.methods.bbp import BBP
from dpbnn.methods.sgld import SGLD
from dpbnn.methods.store import sample_folders
from dpbnn.privacy.ledger import Ledger
from dpbnn.release import release
from dpbnn.training import position
from dpbnn.training.checkpoint import journal, opened
from dpbnn.training.steps import CapturedSteps, EagerSteps, eager
from tests.audit.planted.checkpoints import run
from tests.audit.planted.common import STEPS, Bug, X, Y, fitted, network


def captured():
    """Contract: steps that are captured and replayed are the eager ones; a method that cannot be captured is not."""
    from tests.training.steps.replay import Replays
    from tests.training.steps.test_capture import BATCHES, run_of, taken

    def means(batch, both):
        how = BBP(0.1), BATCHES[batch], "flat", "cpu"
        first, second = run_of(*how), run_of(*how)
        eager_steps = EagerSteps([first.work], [first.state], 0)
        for steps in (eager_steps, CapturedSteps([second.work], [second.state], 0, Replays())):
            _, state = taken(steps, 4, both)
            yield BBP(0.1).to_posterior(state).tensors()

    pairs = [means(batch, both) for batch, both in (("several sizes of parts", False), ("one part", True))]
    try:
        return not all(torch.allclose(one[name], other[name], atol=1e-4) for one, other in pairs for name in one)
    except dpbnn.DpbnnWarning:
        return True


def masked():
    """Contract: masks come from the run's key, whatever seeds torch's own generator."""
    model, weights = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), []
    plan = dpbnn.PrivacyPlan(40, 20, 4, clip_norm=1.0, noise_multiplier=0.1, delta=1e-5)
    how = {"method": dpbnn.MCDropout(0.5), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    for seed in (1, 2):
        torch.manual_seed(seed)
        weights.append(dpbnn.fit(model, X, Y, unsafe_seed=3, seed=3, **how).posterior.weights)
    return not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def untouched():
    """Contract: the user's module itself never runs."""
    model, seen = network(), []
    mine = id(model)
    model.register_forward_hook(lambda module, *_: seen.append(id(module) == mine))
    plan = dpbnn.PrivacyPlan(40, 20, 2, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    how = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    dpbnn.fit(model, X, Y, **how).predict(X)
    return not seen or any(seen)


def locked(folder):
    """Contract: a second worker on a checkpoint is refused."""
    with opened(folder / "state"):
        try:
            with opened(folder / "state"):
                return True
        except dpbnn.DpbnnError:
            return False


def one_folder(folder):
    """Contract: a second run on a folder of samples is refused, whatever its seed."""
    method = SGLD(1e-3, keep_as=dpbnn.KeepSamples(path=folder / "samples"))
    refused, original = [], SGLD.end_step

    def fit():
        with muted("The .* kept samples are worth"), muted("The plan's noise implies temperature"):
            fitted(method=method, seed=0)

    def ended(self, state, step):
        original(self, state, step)
        if step == STEPS - 2:
            patch.setattr(SGLD, "end_step", original)
            with contextlib.suppress(dpbnn.DpbnnError):
                fit()
                refused.append(False)
            refused.append(True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SGLD, "end_step", ended)
        fit()
    return not refused[0]


def whole_journal(folder):
    """Contract: a checkpoint whose journal was cut is refused."""
    run(folder / "state", lasts=9)
    file = folder / "state" / "journal"
    file.write_bytes(file.read_bytes()[: journal.HEADER_BYTES + 2 * journal.LINE_BYTES])
    try:
        run(folder / "state")
    except dpbnn.DpbnnError:
        return False
    return True


def other_precision(folder):
    """Contract: a run that goes on in another precision draws its noise from another key."""
    keys, noise = [], eager.add_noise

    def noted(clipped, noise_multiplier, source, step):
        keys.append(source.randomness.key)
        if len(keys) == 5:
            raise KeyboardInterrupt
        return noise(clipped, noise_multiplier, source, step)

    for precision in (None, "bfloat16"):
        how = {"checkpoint": folder / "state", "execution": dpbnn.Execution(precision=precision)}
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt), muted("The resumed run"):
            patch.setattr(eager, "add_noise", noted)
            fitted(**how)
    return keys[4] == keys[5]


def cache_on_the_host(patch):
    weights, update = BBP.weights, BBP.update

    def cached(self, state, step):
        if getattr(state.draws, "seen", None) != step:
            state.draws.seen = step
            return weights(self, state, step)
        return state.draws.each[0].weights

    def forgotten(self, state, noisy, step):
        state.draws.seen = None
        return update(self, state, noisy, step)

    patch.setattr(BBP, "weights", cached)
    patch.setattr(BBP, "update", forgotten)


def of_the_process(patch):
    patch.setattr(gradient, "_secret_draws", lambda *_: [contextlib.nullcontext()])


def the_module_itself(patch):
    for module in (compatibility, release):
        patch.setattr(module, "replica", lambda model: model)


def folder_shared(patch):
    patch.setattr(claim, "_lock", lambda *_: None)
    patch.setattr(sample_folders, "_refuse_used", lambda _: None)
    patch.setattr(sample_folders.SampleFolder, "is_of", lambda self, _: (self.path / "layout.json").exists())


def journal_believed(patch):
    original = journal.Journal.resume

    def planted(self, length, digest):
        return original(self, 0, hashlib.blake2b().digest())

    patch.setattr(journal.Journal, "resume", planted)


def environment_ignored(patch):
    patch.setattr(position, "current_environment", lambda *_: {})
    patch.setattr(Ledger, "has_charged", lambda *_: False)  # which would notice that bits differ


BUGS = [
    Bug("a cache on the host that a captured graph misses", cache_on_the_host, captured),
    Bug("masks from torch's own generator", of_the_process, masked),
    Bug("the user's module run in place of a replica", the_module_itself, untouched),
    Bug("two workers on one checkpoint", lambda p: p.setattr(claim, "_lock", lambda *_: None), locked),
    Bug("two runs that keep their samples in one folder", folder_shared, one_folder),
    Bug("a journal that was cut and is believed", journal_believed, whole_journal),
    Bug("another precision taken for the same", environment_ignored, other_precision),
]
