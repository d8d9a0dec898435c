"""A folder of samples is that of one run, whatever runs there are: none is released with another one's samples."""

import os
import shutil
import signal
import time

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.methods.store import reserved, sample_folders
from tests.methods.store.chains import LIKE, chain, flat_samples, half, kept
from tests.training.checkpoint.crashing import in_a_child, status_of
from tests.training.checkpoint.interrupting import Interrupt, fit_interrupted
from tests.training.test_fit import X, Y, fit, plan

pytestmark = pytest.mark.filterwarnings("ignore:The .* kept samples are worth")
STEPS = 20
WORKED_ON = "is worked on by another process or thread; give each run a path of its own"
NOT_ITS_OWN = "exists and is not this run's; choose another"


def sampling(path):
    """A method that keeps the second half of its iterates there."""
    return dpbnn.SGLD(1e-3, temperature=1e4, keep_as=dpbnn.KeepSamples(thin=1, path=path))


def at_step(patch, step, call):
    """Call something at the end of that step of the first run."""
    original, calls = dpbnn.SGLD.end_step, []

    def ended(self, state, now):
        original(self, state, now)
        if now == step and not calls:
            calls.append(now)
            call()

    patch.setattr(dpbnn.SGLD, "end_step", ended)


def same_samples(first, second):
    return all(torch.equal(values, second.posterior.samples[name]) for name, values in first.posterior.samples.items())


def interrupted(monkeypatch, step, **options):
    """A run that breaks off at the end of that step."""

    def interrupt():
        raise Interrupt

    with monkeypatch.context() as patch:
        at_step(patch, step, interrupt)
        with pytest.raises(Interrupt):
            fit(**options)


@pytest.mark.parametrize(("step", "words"), [(2, WORKED_ON), (15, NOT_ITS_OWN)])
def test_a_second_run_with_the_same_seed_is_refused_before_anything_is_spent(monkeypatch, tmp_path, step, words):
    path, refused = tmp_path / "samples", []

    def second():
        with pytest.raises(dpbnn.DpbnnError, match=words) as error:
            fit(method=sampling(path), the_plan=plan(noise=0.5), seed=0, unsafe_seed=None)
        refused.append(str(error.value))

    at_step(monkeypatch, step, second)
    with dpbnn.BudgetAccountant(epsilon=1000.0, delta=0.5) as budget:
        release = fit(method=sampling(path), seed=0, unsafe_seed=None)
        assert len(budget.charges) == 1
    assert "\n" not in refused[0]
    assert len(release.posterior) == STEPS // 2
    assert sorted(file.name for file in path.iterdir()) == sorted(
        ["layout.json", *(f"{place}.bin" for place in range(4))]
    )


def test_samples_on_disk_are_those_in_memory(tmp_path):
    assert same_samples(fit(method=sampling(tmp_path / "samples")), fit(method=sampling(None)))


@pytest.mark.guarantees("No two runs keep their samples in one folder.")
def test_runs_at_once_with_one_path_are_refused_before_any_is_charged(tmp_path):
    methods = [sampling(tmp_path / "a"), sampling(tmp_path / "b"), sampling(tmp_path / "b")]
    setups = [dpbnn.Setup(nn.Linear(6, 3), method, plan(), dpbnn.Categorical(), seed=0) for method in methods]
    with dpbnn.BudgetAccountant(epsilon=1000.0, delta=0.5) as budget:
        with pytest.raises(dpbnn.DpbnnError, match=rf"^setups\[2\]: .*b {WORKED_ON}"):
            dpbnn.fit_many(setups, X, Y, progress=False)
        assert not budget.charges
        assert not list(tmp_path.iterdir())
        assert len(dpbnn.fit_many(setups[:2], X, Y, progress=False)) == 2


@pytest.mark.parametrize("step", [2, 15])
def test_a_folder_is_free_after_a_failure_until_there_are_samples_in_it(monkeypatch, tmp_path, step):
    path = tmp_path / "samples"
    interrupted(monkeypatch, step, method=sampling(path), seed=0)
    assert path.exists() == (step == 15)
    if path.exists():
        with pytest.raises(dpbnn.DpbnnError, match=NOT_ITS_OWN):
            fit(method=sampling(path), seed=0)
    else:
        fit(method=sampling(path), seed=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_folder_is_free_after_a_crash(monkeypatch, tmp_path):
    path = tmp_path / "samples"

    def run():
        at_step(monkeypatch, 2, lambda: time.sleep(600))
        fit(method=sampling(path))

    child = in_a_child(run)
    try:
        deadline = time.monotonic() + 60
        while not (path / "lock").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(dpbnn.DpbnnError, match=WORKED_ON):
            fit(method=sampling(path))
    finally:
        os.kill(child, signal.SIGKILL)
        status_of(child)
    fit(method=sampling(path))


@pytest.mark.parametrize("step", [2, 15])
def test_an_interrupted_run_goes_on_with_its_folder_and_nobody_else_does(monkeypatch, tmp_path, step):
    path, options = tmp_path / "samples", {"checkpoint": tmp_path / "run", "seed": 0}
    options |= {"execution": dpbnn.Execution(checkpoint_seconds=0)}
    interrupted(monkeypatch, step, method=sampling(path), **options)
    with pytest.raises(dpbnn.DpbnnError, match=NOT_ITS_OWN):
        fit(method=sampling(path), seed=0)
    assert same_samples(fit(method=sampling(path), **options), fit(method=sampling(None), seed=0))


def test_a_run_with_large_batches_and_no_seed_is_resumed_with_its_folder(monkeypatch, tmp_path):
    """Whether its sums are exact is looked at before it is resumed: that must not take the folder for a new run's."""
    records, batch = 9000, 6000
    x, y = torch.randn(records, 6), torch.arange(records) % 3
    how = {"the_plan": plan(steps=6, dataset_size=records, batch_size=batch, delta=1e-6), "unsafe_seed": None}
    how |= {"x": x, "y": y, "model": nn.Linear(6, 3), "checkpoint": tmp_path / "run"}
    how |= {"execution": dpbnn.Execution(checkpoint_seconds=0)}
    method = dpbnn.SGLD(1e-6, temperature=1e4, keep_as=dpbnn.KeepSamples(thin=1, path=tmp_path / "samples"))
    fit_interrupted(monkeypatch, "add_noise", 5, method=method, **how)
    assert len(fit(method=method, **how).posterior) == 3


def test_samples_on_disk_belong_to_one_run(tmp_path):
    keeping = dpbnn.KeepSamples(thin=10, path=tmp_path / "samples")
    first, second = keeping.open(LIKE, 200), keeping.open(LIKE, 200)
    assert not (tmp_path / "samples").exists()
    half(first)
    for other in (second, keeping.open(LIKE, 200)):
        with pytest.raises(dpbnn.DpbnnError, match=r"samples exists and is not this run's; choose another\.$"):
            half(other, seed=1)
    for step, weights in enumerate(chain(200)):
        if step >= 150:
            first.keep(step, weights, 1.0)
    expected = flat_samples()[9::10]
    found = torch.stack([torch.cat([own[name].flatten() for name in LIKE]) for own in first.posterior({}).draw(100, 0)])
    assert torch.equal(found, expected)
    with pytest.raises(dpbnn.DpbnnError, match="choose another"):
        kept(keeping)


@pytest.mark.parametrize("there", ["layout.json", "something else", None])
def test_a_folder_with_other_files_is_not_touched(tmp_path, there):
    path = tmp_path / "samples"
    if there is None:
        path.write_text("{")
    else:
        path.mkdir()
        (path / there).write_text("{")
    keeping = dpbnn.KeepSamples(path=path)
    with pytest.raises(dpbnn.DpbnnError, match="choose another"):
        kept(keeping)
    with pytest.raises(dpbnn.DpbnnError, match="choose another"), reserved(keeping.folder):
        pass
    assert (path if there is None else path / there).read_text() == "{"
    assert there is None or len(list(path.iterdir())) == 1


def test_of_two_that_make_a_folder_at_once_one_is_refused(tmp_path, monkeypatch):
    keeping = dpbnn.KeepSamples(thin=10, path=tmp_path / "samples")
    first, second = keeping.open(LIKE, 200), keeping.open(LIKE, 200)
    monkeypatch.setattr(sample_folders, "_refuse_used", lambda path: None)  # both have looked already
    half(first)
    with pytest.raises(dpbnn.DpbnnError, match="choose another"):
        half(second)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    keeping = dpbnn.KeepSamples(path=tmp_path / "file" / "samples")
    with (
        pytest.raises(dpbnn.DpbnnError, match="must be a folder that can be made: Not a directory; choose another"),
        reserved(keeping.folder),
    ):
        pass


@pytest.mark.parametrize("harm", ["another run's samples", "written over", "deleted", "cut off", "none"])
def test_a_resumed_run_refuses_samples_on_disk_that_are_not_its_own(tmp_path, harm):
    keeping = dpbnn.KeepSamples(thin=10, path=tmp_path / "samples")
    first = half(keeping.open(LIKE, 200))
    saved = first.state_dict()
    assert saved["count"] == 5
    del first
    if harm == "another run's samples":
        shutil.rmtree(tmp_path / "samples")
        half(keeping.open(LIKE, 200), seed=1)
    elif harm == "written over":
        file = tmp_path / "samples" / "0.bin"
        file.write_bytes(b"\1" + file.read_bytes()[1:])
    elif harm == "deleted":
        shutil.rmtree(tmp_path / "samples")
    elif harm == "cut off":
        os.truncate(tmp_path / "samples" / "0.bin", 8)
    again = keeping.open(LIKE, 200)
    if harm == "none":
        again.load_state_dict(saved)
        for step, weights in enumerate(chain(200)):
            if step >= 150:
                again.keep(step, weights, 1.0)
        expected = list(chain(200))[109::10]
        for found, weights in zip(again.posterior({}).draw(100, seed=0), expected, strict=True):
            assert all(torch.equal(found[name], values) for name, values in weights.items())
    else:
        with pytest.raises(dpbnn.DpbnnError, match="not those of the interrupted run"):
            again.load_state_dict(saved)
