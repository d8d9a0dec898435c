"""Likelihoods against `torch.distributions` and SciPy, through every engine against the truth, and on bad values."""

import math
from dataclasses import dataclass, replace

import pytest
import scipy.stats
import torch
from torch import distributions, nn

import dpbnn
from dpbnn.clipping.check.synthetic import with_changed_record
from dpbnn.clipping.engines import ENGINES
from dpbnn.clipping.gradient import ClippingSettings, clip_and_sum
from dpbnn.models.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    HeteroscedasticGaussian,
    HomoscedasticGaussian,
    Likelihood,
    Moments,
    Probabilities,
)
from tests.truth import assert_equals_truth, clipped_sum

LABELS, COUNTS, BITS, REALS = (
    torch.tensor([0, 2, 1, 1, 2, 0, 1]),
    torch.tensor([[3], [0], [1], [7], [2], [0], [4]]),
    torch.tensor([0, 1, 1, 0, 1, 0, 0]),
    torch.tensor([0.3, -1.2, 2.0, 0.0, -0.4, 1.5, -1.2]),
)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """A likelihood of one's own: counts from the logarithm of their rate."""

    def negative_log_likelihood(self, outputs, targets, weights):
        counts = targets.to(outputs.dtype)
        losses = outputs.exp() - counts * outputs + torch.lgamma(counts.clamp_min(0) + 1)
        return torch.where(counts >= 0, losses, math.nan).sum(dim=-1)

    def predictive(self, outputs, weights):
        return Moments(outputs.exp(), outputs.exp())

    def synthetic_targets(self, like, size, num_outputs):
        return torch.randint(0, 9, (size, *like.shape[1:])).to(like)


# likelihood, number of outputs, seven targets, one that makes no sense, one that is far out
CASES = {
    "classes": (Categorical(), 3, LABELS, -1, 2**62),
    "bits as integers": (Bernoulli(), 1, BITS, 2, 2**62),
    "bits as booleans": (Bernoulli(), 1, BITS.bool(), None, None),
    "bits as numbers": (Bernoulli(), 1, BITS.float(), math.nan, 1e30),
    "bits in a column": (Bernoulli(), 1, BITS.float()[:, None], 0.5, math.inf),
    "one noise level": (HomoscedasticGaussian(0.3), 1, REALS, math.nan, 1e30),
    "a learned noise level": (HomoscedasticGaussian(), 2, torch.stack([REALS, REALS.flip(0)], 1), math.inf, 1e30),
    "a noise level for each": (HeteroscedasticGaussian(), 2, REALS, math.nan, 1e30),
    "several noise levels": (HeteroscedasticGaussian(), 4, torch.stack([REALS, REALS.flip(0)], 1), -math.inf, 1e30),
    "one's own": (Poisson(), 1, COUNTS, -1, -(2**62)),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=[name for name in CASES if name != "bits as booleans"])  # of which each is a target
def case_with_bad_targets(request):
    return CASES[request.param]


def test_every_built_in_likelihood_is_registered_and_has_a_case():
    built_in = {kind for kind in Likelihood.__subclasses__() if kind.__module__.startswith("dpbnn.")}
    assert set(LIKELIHOODS.values()) == built_in == {type(case[0]) for case in CASES.values()} - {Poisson}
    assert all(kind.__name__ == name for name, kind in LIKELIHOODS.items())


def test_equal_settings_make_equal_likelihoods():
    for likelihood, *_ in CASES.values():
        again = replace(likelihood)
        assert again is not likelihood
        assert (again, hash(again), repr(again)) == (likelihood, hash(likelihood), repr(likelihood))


def test_categorical_is_the_negative_log_probability():
    logits = torch.randn(7, 3)
    expected = -distributions.Categorical(logits=logits).log_prob(LABELS)
    assert torch.allclose(Categorical().negative_log_likelihood(logits, LABELS, {}), expected)
    assert torch.allclose(Categorical().predictive(logits, {}).values, logits.softmax(1))


@pytest.mark.parametrize("targets", [BITS, BITS.bool(), BITS.float(), BITS[:, None].double(), BITS.to(torch.uint8)])
def test_bernoulli_is_the_negative_log_probability_whatever_the_type_of_the_targets(targets):
    logits = 5 * torch.randn(7, 1)
    losses = Bernoulli().negative_log_likelihood(logits, targets, {})
    assert torch.allclose(losses, -distributions.Bernoulli(logits=logits[:, 0]).log_prob(BITS.float()), atol=1e-6)
    probabilities = Bernoulli().predictive(logits, {}).values
    by_scipy = -scipy.stats.bernoulli.logpmf(BITS.numpy(), probabilities[:, 1].double().numpy())
    assert losses.tolist() == pytest.approx(by_scipy.tolist(), rel=1e-4)
    two_logits = torch.cat([torch.zeros(7, 1), logits], dim=1)
    assert torch.allclose(losses, Categorical().negative_log_likelihood(two_logits, BITS, {}), atol=1e-6)
    assert torch.allclose(probabilities, Categorical().predictive(two_logits, {}).values)
    assert not torch.allclose(losses, Bernoulli().negative_log_likelihood(-logits, targets, {}), rtol=0.1)


def test_bernoulli_is_right_far_out():
    logits = torch.tensor([[800.0], [-800.0], [1e30], [-1e30], [60.0]], requires_grad=True)
    losses = Bernoulli().negative_log_likelihood(logits, torch.tensor([0, 1, 1, 1, 1]), {})
    assert losses.tolist() == pytest.approx([800.0, 800.0, 0.0, 1e30, math.exp(-60)], rel=1e-5)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0, -1.0, -math.exp(-60)], rel=1e-5)


def test_clipped_sums_are_the_truth_in_every_engine(case):
    likelihood, outputs, targets, *_ = case
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    for size in (0, 1, 7):
        x, y = torch.randn(size, 5), targets[:size]
        checked = dpbnn.check_model(model, likelihood, x, y)
        assert checked.engine == "book_keeping"
        own = likelihood.initial_weights(outputs)
        for clip_norm in (0.3, math.inf):
            truth = clipped_sum(model, likelihood, x, y, clip_norm, own)
            assert_equals_truth(dpbnn.clipped_gradient_sum(model, likelihood, x, y, clip_norm), truth)
            for engine in ENGINES:
                weights = checked.objective.model_weights() | checked.likelihood_weights
                clipped = clip_and_sum(replace(checked, engine=engine), weights, x, y, ClippingSettings(clip_norm))
                assert_equals_truth(clipped, truth)


def test_bad_targets_contribute_nothing_and_never_raise(case_with_bad_targets):
    likelihood, outputs, targets, *bad = case_with_bad_targets
    model, x = nn.Sequential(nn.Linear(5, outputs)), torch.randn(3, 5)
    checked = dpbnn.check_model(model, likelihood, x, targets)
    weights = checked.objective.model_weights() | checked.likelihood_weights
    y = targets[:3].clone()
    y[1], y[2] = bad
    for engine in ENGINES:
        chosen = replace(checked, engine=engine)
        alone = clip_and_sum(chosen, weights, x[:1], y[:1], ClippingSettings(0.5)).gradients
        together = clip_and_sum(chosen, weights, x, y, ClippingSettings(0.5)).gradients
        assert sum(float(g.norm()) for g in alone.values()) > 0.1
        assert all(torch.allclose(together[name], alone[name], atol=1e-7) for name in alone)


def test_a_bad_target_leaves_the_other_losses_alone(case_with_bad_targets):
    likelihood, outputs, targets, *bad = case_with_bad_targets
    own = likelihood.initial_weights(outputs)
    values, y = torch.randn(7, outputs), targets.clone()
    before = likelihood.negative_log_likelihood(values, y, own)
    for one in bad:
        y[3] = one
        after = likelihood.negative_log_likelihood(values, y, own)
        assert not math.isfinite(after[3]) or float(after[3]) > 1e18
        assert torch.equal(after[[0, 1, 2, 4, 5, 6]], before[[0, 1, 2, 4, 5, 6]])


def test_no_records_have_no_losses_and_an_empty_prediction(case):
    likelihood, outputs, targets, *_ = case
    own = likelihood.initial_weights(outputs)
    assert likelihood.negative_log_likelihood(torch.zeros(0, outputs), targets[:0], own).shape == (0,)
    prediction = likelihood.predictive(torch.zeros(0, outputs), own)
    assert all(values.shape[0] == 0 and values.dim() == 2 for values in prediction)
    likelihood.check(torch.zeros(0, outputs), targets[:0])
    likelihood.check_values(targets[:0], outputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_and_predictions_of_half_precision_outputs_are_float32(dtype):
    for likelihood, outputs, targets, *_ in CASES.values():
        if not isinstance(likelihood, Poisson):
            own, half = likelihood.initial_weights(outputs), torch.randn(7, outputs).to(dtype)
            losses = likelihood.negative_log_likelihood(half, targets, own)
            assert losses.dtype == torch.float32
            assert torch.equal(losses, likelihood.negative_log_likelihood(half.float(), targets, own))
            assert all(values.dtype == torch.float32 for values in likelihood.predictive(half, own))


def test_a_model_in_half_precision_is_trained_with_every_likelihood(case):
    likelihood, outputs, targets, *_ = case
    model, x = nn.Sequential(nn.Linear(5, outputs)).bfloat16(), torch.randn(7, 5).bfloat16()
    clipped = dpbnn.clipped_gradient_sum(model, likelihood, x, targets, 0.5)
    own = likelihood.initial_weights(outputs)
    assert_equals_truth(clipped, clipped_sum(model, likelihood, x, targets, 0.5, own), tolerance=0.03)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets", "message"),
    [
        (Categorical(), 3, REALS, r"integer labels .* got torch.float32 .* For a regression target use Homosced"),
        (Categorical(), 1, BITS, r"two classes or more, .* for two classes from one logit use Bernoulli"),
        (Bernoulli(), 2, BITS, r"shape \[records, 1\], got \[records, 2\]; for K classes .* use Categorical"),
        (Bernoulli(), 1, torch.zeros(7, 2), r"got torch.float32 of shape \[records, 2\]; y.argmax\(1\)"),
        (Bernoulli(), 1, torch.zeros(7, 1, 1), r"got torch.float32 of shape \[records, 1, 1\]"),
        (Bernoulli(), 1, torch.zeros(7, dtype=torch.complex64), r"got torch.complex64"),
        (HomoscedasticGaussian(), 3, LABELS, r"Homosced.* floating-point targets, got torch.int64; .* Categorical"),
        (HomoscedasticGaussian(), 3, REALS, r"got \[records, 3\] and \[records\]; reshape"),
        (HeteroscedasticGaussian(), 2, LABELS, r"Heterosced.* floating-point targets, got torch.int64; .* Categorical"),
        (HeteroscedasticGaussian(), 1, REALS, r"got \[records, 1\] and \[records\]; give the model two outputs"),
        (HeteroscedasticGaussian(), 3, REALS, r"got \[records, 3\] and \[records\]; give the model two outputs"),
        (HeteroscedasticGaussian(), 4, REALS, r"got \[records, 4\] and \[records\]; give the model two outputs"),
        (HeteroscedasticGaussian(), 2, torch.zeros(7, 2), r"got \[records, 2\] and \[records, 2\]; give the model two"),
    ],
)
def test_targets_that_do_not_fit_are_refused_with_the_remedy(likelihood, outputs, targets, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        dpbnn.clipped_gradient_sum(nn.Linear(6, outputs), likelihood, torch.randn(7, 6), targets, 1.0)


@pytest.mark.parametrize("likelihood", [Bernoulli(), HomoscedasticGaussian(), HeteroscedasticGaussian()])
def test_outputs_that_are_no_rows_are_refused(likelihood):
    with pytest.raises(dpbnn.DpbnnError, match="needs"):
        likelihood.check(torch.zeros(4, 2, 2), torch.zeros(4, 2))


@pytest.mark.parametrize("bad", [torch.tensor([0, 1, 2]), torch.tensor([-1.0, 1.0]), torch.tensor([[0.0], [math.inf]])])
def test_values_that_are_neither_zero_nor_one_are_refused_before_training(bad):
    with pytest.raises(dpbnn.DpbnnError, match=r"must be 0 or 1, got others; .* Categorical .* HomoscedasticG"):
        Bernoulli().check_values(bad, 1)
    for good in (BITS, BITS.bool(), BITS.float(), torch.tensor([0.0, math.nan, 1.0])):
        Bernoulli().check_values(good, 1)


def test_labels_outside_of_the_classes_are_refused_before_training():
    Categorical().check_values(LABELS, 3)
    with pytest.raises(dpbnn.DpbnnError, match="Labels must lie in 0 to 1, the model's 2 classes, got others"):
        Categorical().check_values(LABELS, 2)


def test_synthetic_targets_are_sensible_differ_and_do_not_come_from_the_data(case):
    likelihood, outputs, targets, *_ = case
    torch.manual_seed(3)
    synthetic = likelihood.synthetic_targets(targets, 64, outputs)
    torch.manual_seed(3)
    assert torch.equal(synthetic, likelihood.synthetic_targets(torch.zeros_like(targets)[:0], 64, outputs))
    assert synthetic.shape == (64, *targets.shape[1:])
    assert synthetic.dtype == targets.dtype
    losses = likelihood.negative_log_likelihood(torch.ones(64, outputs), synthetic, likelihood.initial_weights(outputs))
    assert losses.isfinite().all()
    assert synthetic.unique().numel() > 1


def test_synthetic_whole_numbers_cover_all_classes():
    class Plain(Poisson):
        synthetic_targets = Likelihood.synthetic_targets

    assert Plain().synthetic_targets(LABELS, 500, 4).unique().tolist() == [0, 1, 2, 3]
    assert Plain().synthetic_targets(LABELS, 500, 1).unique().tolist() == [0, 1]


class Mixing(nn.Module):
    def __init__(self, outputs, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, outputs), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


MIXTURES = {
    "centred": lambda h: h - h.mean(0),
    "softmax over records": lambda h: h.softmax(0),
    "attention over records": lambda h: (h @ h.T).softmax(1) @ h,
    "the neighbour": lambda h: h + 0.1 * h.roll(1, 0),
    "the largest": lambda h: h / h.abs().max(),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_model_that_mixes_records_is_refused_with_every_likelihood(name, case):
    likelihood, outputs, targets, *_ = case
    with pytest.raises(dpbnn.DpbnnError, match="mixes records: the loss of one depends on another's values"):
        dpbnn.check_model(Mixing(outputs, MIXTURES[name]), likelihood, torch.randn(7, 6), targets)
    dpbnn.check_model(Mixing(outputs, torch.tanh), likelihood, torch.randn(7, 6), targets)


class Balanced(Bernoulli):
    """Weighs the rarer answer more, by counting over the batch: it mixes records through their targets alone."""

    def negative_log_likelihood(self, outputs, targets, weights):
        share = (targets == 1).double().mean()
        losses = super().negative_log_likelihood(outputs, targets, weights)
        return losses / torch.where(targets.reshape(losses.shape) == 1, share, 1 - share)


@pytest.mark.parametrize("width", range(3, 11))  # another width makes other targets up
@pytest.mark.parametrize("targets", [BITS, BITS.bool(), BITS.float(), BITS[:, None]])
def test_a_likelihood_that_mixes_records_through_their_targets_is_refused(targets, width):
    with pytest.raises(dpbnn.DpbnnError, match="mixes records: the loss of one depends on another's values"):
        dpbnn.check_model(nn.Linear(width, 1), Balanced(), torch.randn(7, width), targets)


def test_a_changed_record_has_another_target_wherever_there_is_one():
    for bits in ([0, 0, 1], [1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1, 0]):
        y = torch.tensor(bits)
        for form in (y, y.bool(), y.float(), y[:, None]):
            (_, changed), others = with_changed_record(torch.zeros(len(y), 2), form, 30.0)
            assert torch.equal(changed[others], form[others])
            assert not torch.equal(changed[~others], form[~others])


def fitted(likelihood, outputs, y, steps=400, learning_rate=0.3):
    """Full-batch descent without noise on inputs that say nothing: all that is learned is the last bias."""
    x = torch.zeros(len(y), 1)
    plan = dpbnn.PrivacyPlan.without_privacy(dataset_size=len(y), batch_size=len(y), steps=steps)
    method = dpbnn.SGD(learning_rate=learning_rate)
    return dpbnn.fit(nn.Linear(1, outputs), x, y, method=method, plan=plan, likelihood=likelihood).predict(x[:2])


@pytest.mark.parametrize("targets", [BITS, BITS.float(), BITS.bool().numpy(), BITS[:, None]])
def test_bernoulli_learns_the_share_of_ones(targets):
    prediction = fitted(Bernoulli(), 1, targets)
    assert prediction.probabilities[0].tolist() == pytest.approx([4 / 7, 3 / 7], rel=1e-4)
    assert prediction.probabilities.shape == (2, 2)
    assert prediction.labels.tolist() == [0, 0]


def test_the_heteroscedastic_gaussian_learns_mean_and_variance():
    prediction = fitted(HeteroscedasticGaussian(), 4, torch.stack([REALS, 3 * REALS + 1], dim=1), steps=1000)
    mean, variance = float(REALS.mean()), float(REALS.var(unbiased=False))
    assert prediction.mean[0].tolist() == pytest.approx([mean, 3 * mean + 1], abs=1e-4)
    assert prediction.variance[0].tolist() == pytest.approx([variance, 9 * variance], rel=1e-3)


def test_a_likelihood_of_ones_own_is_trained_and_predicts():
    prediction = fitted(Poisson(), 1, COUNTS, learning_rate=0.1)
    assert prediction.mean[0].item() == pytest.approx(float(COUNTS.double().mean()), rel=1e-3)
    assert prediction.aleatoric_variance[0].item() == pytest.approx(float(COUNTS.double().mean()), rel=1e-3)


def test_a_likelihood_of_ones_own_is_trained_privately():
    plan = dpbnn.PrivacyPlan(dataset_size=7, batch_size=3, steps=3, clip_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    release = dpbnn.fit(
        nn.Linear(2, 1), torch.randn(7, 2), COUNTS, method=dpbnn.SGD(0.1), plan=plan, likelihood=Poisson()
    )
    assert release.guarantee.epsilon > 0
    assert isinstance(release.likelihood.predictive(torch.zeros(1, 1), {}), Moments)
    assert isinstance(Bernoulli().predictive(torch.zeros(1, 1), {}), Probabilities)


@pytest.mark.parametrize("classes", [2, 10, 32, 33])
def test_probabilities_are_the_softmax_however_many_classes_there_are(classes):
    logits = torch.randn(7, classes, dtype=torch.float64) * 10
    logits[0, 0], logits[1, 1], logits[2, 0] = 1e4, -1e4, math.nan
    found = Categorical().predictive(logits.float(), {}).values
    torch.testing.assert_close(found.double(), logits.softmax(dim=-1), rtol=1e-5, atol=1e-7, equal_nan=True)
