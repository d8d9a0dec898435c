"""Shared objects in many threads: what comes out is what one thread gets, bit for bit; nothing of the user's changes.

Threads are switched after microseconds, so that they meet in the middle of everything.
"""

import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch

import dpbnn
from dpbnn.clipping import check_model
from dpbnn.device.execution import computing_in, full_precision
from dpbnn.privacy.noise.randomness import Randomness

THREADS = 8
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
PLAN = dpbnn.PrivacyPlan(dataset_size=60, batch_size=20, steps=8, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
METHODS = {
    "sgd": dpbnn.SGD(0.5),
    "adam": dpbnn.SGD(0.05, optimizer="Adam"),
    "sgld": dpbnn.SGLD(0.005),
    "bbp": dpbnn.BBP(0.5),
    "joint bbp": dpbnn.BBP(0.5, form="joint", num_draws=2),
    "mc_dropout": dpbnn.MCDropout(0.5),
}
SOME_FAST = [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("sgd", "bbp"))) for name in METHODS]


@pytest.fixture(autouse=True)
def _short_switch_interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def network(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)).eval().to(device)


def fitted(model, method, **options):
    options = {"unsafe_seed": 1, "seed": 1, "progress": False, "likelihood": dpbnn.Categorical()} | options
    return dpbnn.fit(model, X, Y, method=method, plan=PLAN, **options)


def in_threads(work, calls, threads=THREADS):
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(calls)))


class Untouched:
    """Looks at a model and at torch's generators all the time; `seen` is what ever changed."""

    def __init__(self, model):
        self.model, self.seen, self.done = model, set(), threading.Event()
        self.first = self.look()
        self.thread = threading.Thread(target=self.watch)

    def look(self):
        modules = list(self.model.modules())
        return {
            "parameters": [id(value) for own in modules for value in own._parameters.values()],
            "modes": [own.training for own in modules],
            "hooks": [len(own._forward_hooks) + len(own._forward_pre_hooks) for own in modules],
            "torch's generator": torch.get_rng_state().numpy().tobytes(),
            "NumPy's generator": np.random.get_state()[1].tobytes(),  # noqa: NPY002
            "Python's generator": random.getstate(),
            "fast path": torch.backends.mha.get_fastpath_enabled(),
            "products": torch.get_float32_matmul_precision(),
            "filters of warnings": list(warnings.filters),
            "modes of dispatch": _python_dispatch.is_in_torch_dispatch_mode(),
        }

    def watch(self):
        while not self.done.is_set():
            self.seen |= {name for name, value in self.look().items() if value != self.first[name]}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        assert not self.seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", METHODS)
def test_predictions_in_threads_are_those_of_one(name, device):
    model = network(device)
    release = fitted(model, METHODS[name])
    expected = [release.predict(X, num_draws=5, seed=seed).probabilities for seed in range(4)]
    with Untouched(model):
        found = in_threads(lambda call: release.predict(X, num_draws=5, seed=call % 4).probabilities, 168)
    for call, probabilities in enumerate(found):
        assert torch.equal(probabilities, expected[call % 4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SOME_FAST)
def test_fits_of_one_model_in_threads_are_those_of_one(name, device):
    model = network(device)
    expected = fitted(model, METHODS[name]).posterior.tensors()
    with Untouched(model):
        found = in_threads(lambda _: fitted(model, METHODS[name]).posterior.tensors(), 24)
    for tensors in found:
        assert all(torch.equal(tensors[key], values) for key, values in expected.items())


@pytest.mark.guarantees("Seeding the default generators, in any thread, changes nothing that is drawn inside.")
def test_masks_are_the_runs_own_whatever_another_thread_seeds():
    model = network()
    expected = fitted(model, METHODS["mc_dropout"]).posterior.weights
    done = threading.Event()

    def seeding():
        while not done.is_set():
            torch.manual_seed(0)

    thread = threading.Thread(target=seeding)
    thread.start()
    try:
        for _ in range(6):
            found = fitted(model, METHODS["mc_dropout"]).posterior.weights
            assert all(torch.equal(found[key], values) for key, values in expected.items())
    finally:
        done.set()
        thread.join()


def test_masks_depend_on_the_secret_key_and_not_on_the_seed_of_the_process():
    model = network()
    torch.manual_seed(0)
    first = fitted(model, METHODS["mc_dropout"], unsafe_seed=1).posterior.weights
    torch.manual_seed(1)
    again = fitted(model, METHODS["mc_dropout"], unsafe_seed=1).posterior.weights
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [torch.rand(4, generator=Randomness.from_seed(seed).masks(0).on(torch.device("cpu"))) for seed in (1, 2)]
    assert not torch.equal(*drawn)


def test_loading_and_predicting_in_threads(tmp_path):
    model = network()
    release = fitted(model, METHODS["mc_dropout"])
    release.save(tmp_path / "release")
    expected = release.predict(X, num_draws=5, seed=0).probabilities

    def loaded(_):
        return dpbnn.load(tmp_path / "release", model).predict(X, num_draws=5, seed=0).probabilities

    with Untouched(model):
        assert all(torch.equal(found, expected) for found in in_threads(loaded, 80))


@pytest.mark.guarantees("The model is left as it is, at every moment.")
def test_checks_of_one_model_in_threads_agree():
    model = network().train()
    expected = check_model(model, dpbnn.Categorical(), X, Y)

    def checked(_):
        return check_model(model, dpbnn.Categorical(), X, Y)

    with Untouched(model):
        for found in in_threads(checked, 40):
            assert (found.engine, found.num_outputs, found.draws) == (expected.engine, 3, True)
            assert found.objective.model is not model


def test_threads_that_want_other_precisions_wait_for_each_other():
    wanted = {"float32": "highest", "tf32": "high", None: "highest"}
    names = list(wanted)

    def look(call):
        name = names[call % len(names)]
        for _ in range(20):
            with computing_in(name, torch.device("cpu")):
                if torch.get_float32_matmul_precision() != wanted[name]:
                    return False
                with full_precision(torch.device("cpu")):
                    if torch.get_float32_matmul_precision() != "highest":
                        return False
                if torch.get_float32_matmul_precision() != wanted[name]:
                    return False
        return True

    assert all(in_threads(look, 60))
    assert torch.get_float32_matmul_precision() == "highest"


def test_fits_of_different_methods_and_precisions_at_once_are_those_of_one():
    model = network()
    names = list(METHODS)
    executions = [dpbnn.Execution(precision=own) for own in (None, "float32", "bfloat16")]
    cells = [(name, execution) for name in names for execution in executions]
    expected = [fitted(model, METHODS[name], execution=own).posterior.tensors() for name, own in cells]
    run = partial(_one_cell, model, cells)
    for index, found in enumerate(in_threads(run, 2 * len(cells))):
        for key, values in expected[index % len(cells)].items():
            assert torch.equal(found[key], values), cells[index % len(cells)]


def _one_cell(model, cells, call):
    name, execution = cells[call % len(cells)]
    return fitted(model, METHODS[name], execution=execution).posterior.tensors()
