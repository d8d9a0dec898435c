"""The same promises on a CUDA device. Run with `make test-gpu`."""

import pytest
import torch
from scipy import stats
from torch import nn

import dpbnn
from dpbnn.clipping import ClippingSettings, check_model, clip_and_sum, clipped_gradient_sum
from dpbnn.privacy.noise.randomness import Randomness
from tests.clipping.engines.test_engines import MODELS as FALLBACKS
from tests.clipping.engines.test_engines import Wrapped
from tests.clipping.forms.test_joint import MODELS as JOINT
from tests.clipping.forms.test_joint import made, truth
from tests.clipping.rules.test_rules import LAYERS, build, records
from tests.clipping.test_clipped_sum import distance, nearly_cancelling
from tests.methods.test_method import EVERY, PRIVATE, X, Y, same
from tests.methods.test_method import network as with_dropout
from tests.training.checkpoint.interrupting import fit_interrupted
from tests.training.test_fit import fit, network, same_weights
from tests.truth import assert_equals_truth, clipped_sum

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.*vmap:UserWarning", "ignore:.*performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:Neither book-keeping:dpbnn.errors.DpbnnWarning"),
    pytest.mark.filterwarnings("ignore:The .* kept samples"),
]
CUDA = "cuda"


@pytest.mark.parametrize(("make", "shape", "integers"), LAYERS)
def test_a_rule_gives_the_truth_on_a_device(make, shape, integers):
    model = build(make, shape, integers, torch.float64).to(CUDA)
    for size in (0, 7):
        x, y = (part.to(CUDA) for part in records(size, shape, integers, torch.float64))
        clipped = clipped_gradient_sum(model, dpbnn.Categorical(), x, y, 0.5)
        assert_equals_truth(clipped, clipped_sum(model, dpbnn.Categorical(), x, y, 0.5), tolerance=1e-11)


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_fallback_gives_the_truth_on_a_device(name):
    model = Wrapped(FALLBACKS[name][0]()).to(CUDA)
    x, y = torch.randn(7, 5, 8, device=CUDA), torch.randint(3, (7,), device=CUDA)
    clipped = clipped_gradient_sum(model, dpbnn.Categorical(), x, y, 0.2)
    assert_equals_truth(clipped, clipped_sum(model, dpbnn.Categorical(), x, y, 0.2), tolerance=2e-5)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_tensor_cores_do_not_let_a_record_through(precision):
    """With TF32 allowed everywhere, sums and norms of the engine are still float32 or wider."""
    from dpbnn.clipping.forms.per_record import Outer
    from dpbnn.device.execution import full_precision

    a, g = (part.to(CUDA) for part in nearly_cancelling(torch.float32))
    outer = Outer(a, g, torch.Size((48, 48)))
    torch.set_float32_matmul_precision(precision)
    try:
        for form in (outer, outer.dense()):
            for clip_norm in (1e-3, 1.0, 100.0):
                with full_precision(a.device):
                    factors = (clip_norm / (1 + 1e-4) / form.squared_norms().sqrt()).clamp(max=1.0)
                    for record in range(len(a)):
                        keep = torch.arange(len(a), device=CUDA) == record
                        assert float(form.weighted_sum(factors * keep).double().norm()) <= clip_norm
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(CUDA)
        x, y = torch.randn(33, 64, device=CUDA), torch.randint(3, (33,), device=CUDA)
        x[7] *= 1e6
        for record in (0, 7):
            rest = torch.arange(33, device=CUDA) != record
            whole = clipped_gradient_sum(model, dpbnn.Categorical(), x, y, 1.0)
            without = clipped_gradient_sum(model, dpbnn.Categorical(), x[rest], y[rest], 1.0)
            # TF32 may make the forward pass of the others depend on the batch's shape, but no record exceeds C
            alone = clipped_gradient_sum(model, dpbnn.Categorical(), x[~rest], y[~rest], 1.0)
            nothing = {name: torch.zeros_like(values) for name, values in alone.gradients.items()}
            assert distance(alone.gradients, nothing) <= 1.0
            assert distance(whole.gradients, without.gradients) <= 1.1
    finally:
        torch.set_float32_matmul_precision("highest")


def test_noise_on_a_device_is_standard_normal_into_the_tails():
    randomness, beyond, count = Randomness.from_seed(0), 0, 20_000_000
    for step in range(5):
        values = torch.zeros(count, device=CUDA)
        randomness.add_normals([values], 1.0, step)
        beyond += int((values.abs() > 5.0).sum())
        if step == 0:
            assert stats.kstest(values[:200_000].cpu().numpy(), "norm").pvalue > 1e-6
            assert abs(float(values.double().var()) - 1) < 5 * (2 / count) ** 0.5
            again = torch.zeros(count, device=CUDA)
            randomness.add_normals([again], 1.0, step)
            assert torch.equal(values, again)
    expected = 5 * count * 2 * stats.norm.sf(5.0)
    assert abs(beyond - expected) < 5 * expected**0.5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_run_on_a_device_learns_resumes_and_leaves_the_model_alone(monkeypatch, tmp_path, dropout):
    model = network(dropout)
    options = {"model": model, "device": CUDA}
    expected = fit(**options)
    assert next(iter(expected.posterior.weights.values())).is_cuda
    assert not next(model.parameters()).is_cuda
    fit_interrupted(monkeypatch, "fingerprint", 8, checkpoint=tmp_path / "run", **options)
    release = fit(checkpoint=tmp_path / "run", **options)
    assert same_weights(release, expected)
    assert release.settings["releases_charged"] == 20
    prediction = release.predict(torch.randn(5, 6))
    assert not prediction.probabilities.is_cuda
    release.save(tmp_path / "release")
    loaded = dpbnn.load(tmp_path / "release", network(dropout))
    assert loaded.predict(torch.zeros(5, 6)).probabilities.shape == (5, 3)


def test_a_run_that_began_on_a_device_goes_on_without_it_with_fresh_noise(monkeypatch, tmp_path):
    fit_interrupted(monkeypatch, "fingerprint", 8, checkpoint=tmp_path / "run", device=CUDA)
    with pytest.warns(dpbnn.DpbnnWarning, match="7 steps are charged again"):
        release = fit(checkpoint=tmp_path / "run")
    assert release.settings["releases_charged"] == 20
    assert not next(iter(release.posterior.weights.values())).is_cuda


def test_bfloat16_autocast_on_a_device_keeps_clipping_in_float32():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(CUDA)
    x, y = torch.randn(33, 64, device=CUDA), torch.randint(3, (33,), device=CUDA)
    with torch.autocast(CUDA, dtype=torch.bfloat16):
        clipped = clipped_gradient_sum(model, dpbnn.Categorical(), x, y, 0.5)
        assert check_model(model, dpbnn.Categorical(), x, y).engine == "book_keeping"
    assert all(values.dtype == torch.float32 for values in clipped.gradients.values())
    assert_equals_truth(clipped, clipped_sum(model, dpbnn.Categorical(), x, y, 0.5), tolerance=0.05)


@pytest.mark.parametrize("method", EVERY)
def test_every_method_trains_saves_and_predicts_on_a_device(tmp_path, method):
    options = {"method": method, "plan": PRIVATE, "likelihood": dpbnn.Categorical(), "unsafe_seed": 5, "seed": 7}
    release, again = (dpbnn.fit(with_dropout().to(CUDA), X.to(CUDA), Y.to(CUDA), **options) for _ in range(2))
    assert same(release, again)
    assert all(values.isfinite().all() for weights in release.posterior.draw(3, 0) for values in weights.values())
    prediction = release.predict(X, num_draws=10, seed=1)
    assert not prediction.probabilities.is_cuda
    release.save(tmp_path / "release")
    loaded = dpbnn.load(tmp_path / "release", with_dropout())
    for name, values in release.posterior.tensors().items():
        assert torch.equal(values.cpu(), loaded.posterior.tensors()[name])
    here, there = (r.predict(X, num_draws=500).probabilities for r in (loaded, release))
    assert torch.allclose(here, there, atol=0.05)


@pytest.mark.parametrize("num_draws", [1, 3])
@pytest.mark.parametrize("name", JOINT)
def test_joint_clipping_gives_the_truth_on_a_device(name, num_draws):
    model, x, y, draws = made(name, num_draws)
    _, norms = truth(model, x, y, draws, 1.0)
    clip_norm = sorted(norms)[len(norms) // 2]
    expected, _ = truth(model, x, y, draws, clip_norm)
    moved = dpbnn.types.Draws(
        *(tuple({n: v.to(CUDA) for n, v in part.items()} for part in own) for own in (draws.weights, draws.multipliers))
    )
    checked = check_model(model.to(CUDA), dpbnn.Categorical(), x.to(CUDA), y.to(CUDA))
    found = clip_and_sum(checked, moved, x.to(CUDA), y.to(CUDA), ClippingSettings(clip_norm)).gradients
    scale = sum(float(values.square().sum()) for values in expected.values()) ** 0.5
    for key, values in expected.items():
        assert float((found[key].double().cpu() - values).norm()) <= 1e-5 * scale, key


def test_public_data_may_lie_on_the_device():
    model = network().to(CUDA)
    release = fit(model=model, public_data=(X.to(CUDA), Y.to(CUDA)))
    assert all(0 <= point["public_accuracy"] <= 1 for point in release.history)
