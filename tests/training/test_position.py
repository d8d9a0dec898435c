"""Where a run goes on after an interruption: with the key and the settings that it began with, or with fresh noise."""

import pytest
from torch import nn

import dpbnn
from dpbnn.errors import DpbnnWarning
from dpbnn.training.checkpoint import folder
from tests.training.checkpoint.interrupting import Interrupt, Noises, fit_interrupted, lines_in, other_bits, saved_in
from tests.training.test_fit import X, Y, fit, plan, same_weights

SELDOM = dpbnn.Execution(checkpoint_seconds=1000.0)


def test_a_resumed_run_keeps_its_own_key(monkeypatch, tmp_path):
    """The key of the interrupted run comes from its checkpoint; a second interruption changes nothing either."""
    options = {"checkpoint": tmp_path / "run", "unsafe_seed": None}
    noises = Noises(monkeypatch)
    for at in (5, 4):
        fit_interrupted(monkeypatch, "clip_and_sum", at, **options)
    release = fit(**options)
    assert release.settings["releases_charged"] == 20
    assert release.guarantee.voided_by == ()
    assert len(noises.keys) == 1


def test_a_repeated_step_that_comes_out_differently_is_dropped_and_charged_again_with_fresh_noise(
    monkeypatch, tmp_path
):
    """Another machine, on which the last bits differ: the same noise on another sum must never be used."""
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = saved_in(tmp_path / "run").key
    assert lines_in(tmp_path / "run") == 8
    updates, noises, original_update = [], Noises(monkeypatch), dpbnn.SGD.update

    def noted_update(self, state, noisy, step):
        updates.append(step)
        return original_update(self, state, noisy, step)

    other_bits(monkeypatch)
    monkeypatch.setattr(dpbnn.SGD, "update", noted_update)
    with pytest.warns(DpbnnWarning, match="8 steps are charged again, and the run ends"):
        release = fit(**options)
    assert noises.drawn[0][:2] == (0, first_key)  # comes out differently, and is dropped
    assert [step for step, key, _ in noises.drawn if key != first_key] == list(range(20))
    assert len(noises.keys) == 2
    assert release.settings["releases_charged"] == 20
    assert updates == list(range(12))  # 8 were charged before, 12 now: the plan's 20 are spent, and the rest is dropped
    assert "unsafe_seed" in str(release.guarantee)


@pytest.mark.parametrize("at", ["write", "charge"])
def test_the_fresh_key_is_on_disk_before_anything_is_released_with_it(monkeypatch, tmp_path, at):
    """Interrupted before, the old key with its marks is there; interrupted after, the new one."""
    options = {"checkpoint": tmp_path / "run", "execution": SELDOM}
    fit_interrupted(monkeypatch, "clip_and_sum", 9, **options)
    first_key = saved_in(tmp_path / "run").key

    def interrupted(*_):
        raise Interrupt

    with monkeypatch.context() as patch:
        other_bits(patch)
        patch.setattr(folder.Checkpoint, at, interrupted)
        patch.setattr("dpbnn.training.position.warn", lambda _: None)
        with pytest.raises(Interrupt):
            fit(**options)
    assert (saved_in(tmp_path / "run").key == first_key) == (at == "write")
    assert lines_in(tmp_path / "run") == 8


@pytest.mark.guarantees("A checkpoint of other data, another model or another plan is refused.")
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
def test_a_checkpoint_of_other_data_another_model_or_another_plan_is_refused(monkeypatch, tmp_path, change, what):
    fit_interrupted(monkeypatch, "clip_and_sum", 3, checkpoint=tmp_path / "run")
    with pytest.raises(dpbnn.DpbnnError, match=f"belongs to another run: {what} changed"):
        fit(checkpoint=tmp_path / "run", **change)
    assert same_weights(fit(checkpoint=tmp_path / "run"), fit())
