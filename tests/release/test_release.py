"""A release is saved whole or not at all, loads without executing anything, and still loads in later versions."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import dpbnn

DATA = Path(__file__).parent
X = torch.linspace(-1, 1, 12).reshape(4, 3)


def release_of(model, likelihood, y):
    plan = dpbnn.PrivacyPlan(dataset_size=4, batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=2.0, delta=1e-2)
    return dpbnn.fit(
        model,
        X,
        y,
        method=dpbnn.SGD(learning_rate=0.1),
        plan=plan,
        likelihood=likelihood,
        public_data=(X.clone(), y.clone()),
    )


def classifier():
    return release_of(dpbnn.networks.MLP(3, [4], 2), dpbnn.Categorical(), torch.tensor([0, 1, 1, 0]))


def own_regressor():
    return release_of(nn.Sequential(nn.Linear(3, 2)), dpbnn.HomoscedasticGaussian(), torch.zeros(4, 2))


def same_prediction(first, second):
    one, other = first.predict(X), second.predict(X)
    tensors = [name for name, value in vars(one).items() if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(torch.equal(vars(one)[name], vars(other)[name]) for name in tensors)


def test_a_release_of_our_own_network_loads_without_a_model(tmp_path):
    release = classifier()
    release.save(tmp_path / "release")
    loaded = dpbnn.load(tmp_path / "release")
    assert same_prediction(release, loaded)
    assert loaded.guarantee == release.guarantee
    assert loaded.settings == release.settings
    assert loaded.history == release.history
    assert len(release.history) == 3


def test_a_release_whose_public_measures_are_no_numbers_can_be_saved_too(tmp_path):
    measures = (
        {"step": 1, "public_rmse": 0.5},
        {"step": 2, "public_rmse": math.inf},
        {"step": 3, "public_rmse": math.nan},
    )
    replace(classifier(), history=measures).save(tmp_path / "release")
    first, *others = dpbnn.load(tmp_path / "release").history
    assert first == measures[0]
    assert [own["step"] for own in others] == [2, 3]
    assert all(math.isnan(own["public_rmse"]) for own in others)


def test_a_release_of_any_other_network_loads_with_the_model(tmp_path):
    release = own_regressor()
    release.save(tmp_path / "release")
    with pytest.raises(dpbnn.DpbnnError, match="model must be given: the release holds weights of your own Sequential"):
        dpbnn.load(tmp_path / "release")
    loaded = dpbnn.load(tmp_path / "release", nn.Sequential(nn.Linear(3, 2)))
    assert same_prediction(release, loaded)
    low, high = loaded.predict(X).interval(0.9)
    assert low.shape == high.shape == (4, 2)


def test_a_model_that_does_not_fit_is_refused_by_name(tmp_path):
    own_regressor().save(tmp_path / "release")
    with pytest.raises(dpbnn.DpbnnError, match=r"the first '0.bias': the model has \[5\], the release \[2\]"):
        dpbnn.load(tmp_path / "release", nn.Sequential(nn.Linear(3, 5)))
    frozen = nn.Sequential(nn.Linear(3, 2))
    frozen[0].bias.requires_grad_(False)
    with pytest.raises(dpbnn.DpbnnError, match="with the same parameters frozen"):
        dpbnn.load(tmp_path / "release", frozen)


def test_a_release_is_numbers_json_and_a_page_without_pickle(tmp_path):
    classifier().save(tmp_path / "release")
    files = sorted(file.name for file in (tmp_path / "release").iterdir())
    assert files == ["card.md", "posterior.safetensors", "release.json"]
    description = json.loads((tmp_path / "release" / "release.json").read_text())
    assert description["format_version"] == 1
    assert description["guarantee"]["delta"] == 0.01
    for file in files:
        with pytest.raises(Exception, match=r".*"):
            pickle.loads((tmp_path / "release" / file).read_bytes())


def test_saving_replaces_a_release_whole_or_not_at_all(tmp_path, monkeypatch):
    first, second = classifier(), classifier()
    first.save(tmp_path / "release")
    with pytest.raises(dpbnn.DpbnnError, match="holds a release already"):
        second.save(tmp_path / "release")
    assert same_prediction(dpbnn.load(tmp_path / "release"), first)
    second.save(tmp_path / "release", overwrite=True)
    assert same_prediction(dpbnn.load(tmp_path / "release"), second)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("dpbnn.release.release.save_file", fail)
    with pytest.raises(dpbnn.DpbnnError, match=r"cannot be written.*disk full"):
        first.save(tmp_path / "release", overwrite=True)
    assert same_prediction(dpbnn.load(tmp_path / "release"), second)
    assert [path.name for path in tmp_path.iterdir()] == ["release"]


def test_saving_does_not_overwrite_what_is_no_release(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(dpbnn.DpbnnError, match="exists and is no release"):
        classifier().save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "release.json").unlink(), "has no release.json"),
        (lambda path: (path / "release.json").write_text("{"), "is damaged"),
        (lambda path: (path / "release.json").write_text("[]"), "is damaged"),
        (lambda path: (path / "release.json").write_text('{"format_version": 99}'), "format version 99"),
        (lambda path: (path / "release.json").write_text('{"format_version": 1}'), "it lacks guarantee"),
        (lambda path: (path / "posterior.safetensors").unlink(), "cannot be read"),
        (lambda path: (path / "posterior.safetensors").write_bytes(b"\x00" * 40), "cannot be read"),
    ],
)
def test_a_damaged_release_gets_one_clear_line(tmp_path, damage, message):
    classifier().save(tmp_path / "release")
    damage(tmp_path / "release")
    with pytest.raises(dpbnn.DpbnnError, match=message):
        dpbnn.load(tmp_path / "release")


@pytest.mark.parametrize("version", sorted(path.name for path in DATA.glob("release-*")))
def test_releases_of_earlier_formats_still_load(version):
    loaded = dpbnn.load(DATA / version)
    expected = json.loads((DATA / version / "expected.json").read_text())
    assert torch.allclose(loaded.predict(X).probabilities, torch.tensor(expected["probabilities"]), atol=1e-6)
    assert loaded.guarantee.epsilon == expected["epsilon"]


def test_there_is_an_earlier_release_to_load():
    assert list(DATA.glob("release-1"))


def test_predicting_leaves_the_model_alone_and_refuses_inputs_that_do_not_fit():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].eval()
    release = release_of(model, dpbnn.Categorical(), torch.tensor([0, 1, 1, 0]))
    first, second = release.predict(X.double().numpy()), release.predict(X)
    assert torch.equal(first.probabilities, second.probabilities)  # dropout is off for a point estimate
    assert [module.training for module in model] == [False, True, True]
    with pytest.raises(dpbnn.DpbnnError, match=r"X of shape \[4, 2\] .* does not fit the model"):
        release.predict(X[:, :2])
    with pytest.raises(dpbnn.DpbnnError, match="num_draws must be >= 1"):
        release.predict(X, num_draws=0)
    assert release.predict(X[:0]).probabilities.shape == (0, 2)


def test_a_likelihood_of_ones_own_is_passed_in_again(tmp_path):
    class Laplace(dpbnn.Likelihood):
        def negative_log_likelihood(self, outputs, targets, weights):
            return (targets - outputs).abs().sum(1)

        def predictive(self, outputs, weights):
            return dpbnn.models.likelihoods.Moments(outputs, torch.full_like(outputs, 2.0))

    release_of(dpbnn.networks.MLP(3, [], 1), Laplace(), torch.zeros(4, 1)).save(tmp_path / "release")
    with pytest.raises(dpbnn.DpbnnError, match=r"likelihood must be given: .* your own Laplace"):
        dpbnn.load(tmp_path / "release")
    assert dpbnn.load(tmp_path / "release", likelihood=Laplace()).predict(X).variance.tolist() == [[2.0]] * 4


def test_a_network_of_another_kind_is_warned_of_when_it_is_loaded(tmp_path):
    def network(activation):
        return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3))

    plan = dpbnn.PrivacyPlan(40, 10, 2, clip_norm=1.0, noise_multiplier=1.0, delta=1e-2)
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    options = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical()}
    dpbnn.fit(network(nn.Tanh), x, y, **options).save(tmp_path / "release")
    dpbnn.load(tmp_path / "release", network(nn.Tanh))
    with pytest.warns(dpbnn.DpbnnWarning, match=r"'\(1\): ReLU\(\)' where that had '\(1\): Tanh\(\)'"):
        dpbnn.load(tmp_path / "release", network(nn.ReLU))
    with pytest.raises(dpbnn.DpbnnError, match="must be the Categorical that"):
        dpbnn.load(tmp_path / "release", network(nn.Tanh), dpbnn.HomoscedasticGaussian())


def test_what_is_printed_of_a_release_is_short():
    release = classifier()
    assert len(repr(release.posterior)) < 80
    assert len(repr(release.predict(X))) < 80


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x):
        return self.linear(x) + self.shift


def test_a_buffer_that_is_replaced_counts_at_once():
    release = release_of(Shifted(), dpbnn.HomoscedasticGaussian(), torch.zeros(4, 2))
    before = release.predict(X, seed=0).mean
    release.model.shift = torch.ones(2)
    torch.testing.assert_close(release.predict(X, seed=0).mean, before + 1)
