"""A run that goes on where a sum may come out with other bits draws its noise from a fresh key."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import dpbnn
from dpbnn import _version
from dpbnn.errors import DpbnnWarning
from dpbnn.files import claim
from dpbnn.training.checkpoint import current_environment
from dpbnn.training.checkpoint import environment as module
from tests.training.checkpoint.interrupting import Noises, fit_interrupted
from tests.training.test_fit import fit

CPU = torch.device("cpu")
SELDOM = {"checkpoint_seconds": 1000.0}


def now(device=CPU, engine="book_keeping", records="InMemoryRecords", **execution):
    return current_environment(device, dpbnn.Execution(**execution), engine, records)


class Gpu:
    """Properties of a device that is not here."""

    name, major, minor, multi_processor_count = "H200", 9, 0, 132


def gpu(patch, **other):
    patch.setattr(torch.cuda, "get_device_properties", lambda _: type("Other", (Gpu,), other))
    return now(torch.device("cuda:0"))


@pytest.mark.parametrize(
    "choice",
    [
        {"micro_batch_size": 4},
        {"precision": "bfloat16"},
        {"graphs": False},
        {"data_on_device": False},
        {"dataset_workers": 1},
        {"engine": "vmap"},
        {"records": "ResidentRecords"},
        {"device": torch.device("meta")},
    ],
    ids=str,
)
def test_the_record_knows_every_choice_that_may_change_a_sum(choice):
    assert now(**choice) != now()


def test_the_record_does_not_know_how_often_states_are_written():
    assert now(checkpoint_seconds=3.0) == now()
    known = set(now())
    assert {name for name in vars(dpbnn.Execution()) if name not in known} == {"checkpoint_seconds"}


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (torch, "__version__", "2.11.0"),
        (np, "__version__", "1.26.0"),
        (_version, "__version__", "9.9.9"),
        (torch.version, "cuda", "13.7"),
        (module.sys, "version", "3.99"),
        (torch, "get_num_threads", lambda: 64),
        (torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX"),
        (module.platform, "machine", lambda: "aarch64"),
        (torch, "get_float32_matmul_precision", lambda: "high"),
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
        (claim, "host", lambda: "elsewhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_record_knows_versions_processors_threads_and_torchs_settings(monkeypatch, where, name, value):
    before = now()
    monkeypatch.setattr(where, name, value)
    assert now() != before


def test_the_record_knows_the_processor_but_not_its_clock(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PROCESSORS", tmp_path / "cpuinfo")
    found = []
    for text in ("", "model name : A\ncpu MHz : 1\n\nmodel name : C", "model name : A\ncpu MHz : 2", "model name : B"):
        (tmp_path / "cpuinfo").write_text(text)
        found.append(now())
    assert found[1] == found[2]
    assert found[0] != found[1] != found[3]


def test_the_record_knows_the_gpu(monkeypatch):
    before = gpu(monkeypatch)
    assert gpu(monkeypatch) == before
    assert gpu(monkeypatch, name="H100") != before
    assert gpu(monkeypatch, minor=1) != before
    assert gpu(monkeypatch, multi_processor_count=114) != before


def test_the_record_knows_flags_and_the_systems_variables(monkeypatch):
    before = now()
    with torch.autocast("cpu", torch.bfloat16):
        assert now() != before
    torch._C._set_mkldnn_enabled(False)
    try:
        assert now() != before
    finally:
        torch._C._set_mkldnn_enabled(True)
    torch.set_flush_denormal(True)
    try:
        assert now() != before
    finally:
        torch.set_flush_denormal(False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", not torch.backends.cudnn.deterministic)
    assert now() != before
    monkeypatch.undo()
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert now() != before
    monkeypatch.undo()
    assert now() == before


def test_settings_that_torch_does_not_tell_are_no_failure(monkeypatch):
    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert "mix of the legacy" in now()["matmul precision"]


@pytest.mark.slow
def test_an_identical_restart_has_the_same_record_before_and_after_a_run():
    """Steps set and reset torch's flags; a record that noticed would renew the key of every resumed run."""
    script = (
        "import json, sys, torch, dpbnn\n"
        "from dpbnn.training.checkpoint import current_environment\n"
        "now = lambda: current_environment(torch.device('cpu'), dpbnn.Execution(), 'book_keeping', 'InMemoryRecords')\n"
        "first = now()\n"
        "from tests.training.test_fit import fit\n"
        "fit(progress=False)\n"
        "print(json.dumps([first, now()]))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, check=True)
    first, second = json.loads(done.stdout)
    assert first == second


@pytest.mark.guarantees("A run that goes on in another environment draws its noise from a fresh key.")
def test_a_run_that_goes_on_in_another_environment_draws_its_noise_from_a_fresh_key(monkeypatch, tmp_path):
    """What was measured once: the same noise on sums in bfloat16, and the difference showed the record to 7 digits."""
    options = {"checkpoint": tmp_path / "run", "unsafe_seed": None}
    noises = Noises(monkeypatch)
    fit_interrupted(monkeypatch, "clip_and_sum", 7, execution=dpbnn.Execution(**SELDOM), **options)
    with pytest.warns(DpbnnWarning, match="6 steps are charged again"):
        release = fit(execution=dpbnn.Execution(precision="bfloat16", **SELDOM), **options)
    assert release.settings["releases_charged"] == 20
    assert [step for step, key, _ in noises.drawn if key == noises.keys[0]] == list(range(6)), "never again"
    assert len(noises.keys) == 2
    for step in range(6):
        first, second = noises.of(step)
        assert (first - second).abs().max() > 0.1


def test_an_environment_that_changes_where_nothing_is_repeated_costs_nothing(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run"}
    noises = Noises(monkeypatch)
    fit_interrupted(monkeypatch, "clip_and_sum", 7, execution=dpbnn.Execution(checkpoint_seconds=0), **options)
    release = fit(execution=dpbnn.Execution(checkpoint_seconds=0, micro_batch_size=5), **options)
    assert release.settings["releases_charged"] == 20
    assert [step for step, _, _ in noises.drawn] == list(range(20))
    assert len(noises.keys) == 2


def test_the_second_environment_is_what_the_next_resumption_is_compared_with(monkeypatch, tmp_path):
    options = {"checkpoint": tmp_path / "run", "execution": dpbnn.Execution(micro_batch_size=5)}
    noises = Noises(monkeypatch)
    fit_interrupted(monkeypatch, "clip_and_sum", 1, checkpoint=tmp_path / "run")
    fit_interrupted(monkeypatch, "clip_and_sum", 4, **options)
    fit(**options)
    assert len(noises.keys) == 1
