"""A method from outside: it keeps what every method promises, and whatever chooses a method by name has it."""

import inspect
import json
import subprocess
import sys
from functools import partial

import pytest
import torch

import dpbnn
from dpbnn.audit.one_run import audit_method
from dpbnn.methods import METHODS, MethodEntry
from dpbnn.training import loop
from dpbnn.training.steps import CapturedSteps
from dpbnn.types import NoisySum
from tests.extending import code, skeleton
from tests.methods import test_method as contract
from tests.methods.test_method import PRIVATE, PUBLIC, fit, network, same
from tests.training.steps.replay import Replays

PROMISES = [
    test
    for name, test in vars(contract).items()
    if name.startswith("test_") and {"method"} <= inspect.signature(test).parameters.keys() and "costs" not in name
]
RATE = 1e-3
pytestmark = pytest.mark.filterwarnings("ignore:The .* kept samples", "ignore:The plan's noise implies")


@pytest.fixture(autouse=True)
def module():
    """Registered while the test runs."""
    module = skeleton("A method")
    METHODS["sghmc_like"] = MethodEntry(f"{module.__name__}:SGHMCLike", is_sampler=True)
    yield module
    del METHODS["sghmc_like"]


@pytest.mark.parametrize("promise", PROMISES, ids=[test.__name__ for test in PROMISES])
def test_it_keeps_what_every_method_promises(module, promise, monkeypatch, tmp_path):
    given = {"method": module.SGHMCLike(RATE), "monkeypatch": monkeypatch, "tmp_path": tmp_path, "at": 7}
    promise(**{name: value for name, value in given.items() if name in inspect.signature(promise).parameters})


@pytest.mark.parametrize("plan", [PRIVATE, PUBLIC], ids=["private", "public"])
def test_at_friction_one_it_is_the_sampler_without_a_velocity(module, plan):
    options = {"unsafe_seed": 5} if plan.is_private else {"unsafe_seed": 5, "seed": 7}
    plain, ours = (fit(method, plan, **options) for method in (dpbnn.SGLD(RATE), module.SGHMCLike(RATE, friction=1.0)))
    for name, values in plain.posterior.samples.items():
        torch.testing.assert_close(ours.posterior.samples[name], values)
    assert not same(plain, fit(module.SGHMCLike(RATE, friction=0.5), plan, **options))


@pytest.mark.parametrize("friction", [0.05, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_without_records_it_samples_the_prior_at_the_temperature(module, friction, temperature):
    """Many weights at once, each a chain of its own; releases are noise alone."""
    scale, rate = 0.5, 0.005
    draft = dpbnn.PrivacyPlan(100, 10, 1500, clip_norm=1.0, noise_multiplier=0.1, delta=1e-3)
    method = module.SGHMCLike(rate, dpbnn.Gaussian(scale), friction, temperature)
    plan = method.prepare(draft).plan
    state = method.init({"w": torch.zeros(3000)}, plan, seed=0)
    for step in range(plan.steps):
        method.begin_step(state, step)
        state = method.update(state, NoisySum({"w": plan.noise_at(step) * torch.randn(3000)}), step)
    assert state.weights["w"].var().item() == pytest.approx(temperature * scale**2, rel=0.1)


def test_rates_may_change_along_the_run_and_nonsense_is_refused(module):
    assert fit(module.SGHMCLike([(RATE, 4), (RATE / 2, 8)])).guarantee.plan == PRIVATE
    for wrong in ({"friction": 0.0}, {"friction": 1.5}, {"learning_rate": -1.0}, {"temperature": 0.0}):
        with pytest.raises(dpbnn.DpbnnError, match=next(iter(wrong))):
            module.SGHMCLike(**{"learning_rate": RATE} | wrong)


def test_its_steps_can_be_captured(module, monkeypatch):
    recorder, eager = Replays(), fit(module.SGHMCLike(RATE))
    monkeypatch.setattr(loop, "why_not_captured", lambda *_: None)
    monkeypatch.setattr(loop, "CapturedSteps", partial(CapturedSteps, graphs=recorder))
    captured = fit(module.SGHMCLike(RATE))
    assert recorder.replayed > 10
    for name, values in eager.posterior.samples.items():
        torch.testing.assert_close(captured.posterior.samples[name], values, rtol=1e-4, atol=1e-5)


def test_several_runs_may_use_it_at_once(module):
    setups = [
        dpbnn.Setup(network(), method, PRIVATE, dpbnn.Categorical(), seed=0)
        for method in (module.SGHMCLike(RATE), dpbnn.SGD(0.1), module.SGHMCLike(RATE / 2))
    ]
    releases = dpbnn.fit_many(setups, contract.X, contract.Y, progress=False)
    assert [release.settings["method"] for release in releases] == ["sghmc_like", "sgd", "sghmc_like"]
    assert [len(release.posterior) for release in releases[::2]] == [6, 6]
    assert all(release.guarantee.holds for release in releases)


def test_the_guarantee_is_that_of_the_plan_and_the_release_says_how_it_was_made(module):
    release = fit(module.SGHMCLike(RATE), unsafe_seed=None)
    assert release.guarantee.plan == PRIVATE
    assert "sghmc" not in str(release.guarantee)
    assert release.settings["friction"] == 0.1
    assert release.settings["temperature"] == dpbnn.SGLD(RATE).temperature_under(PRIVATE)


def test_an_audit_attacks_it():
    plan = dpbnn.PrivacyPlan(40, 20, 10, clip_norm=1.0, noise_multiplier=4.0, delta=1e-3)
    attack = audit_method("sghmc_like", plan, canaries=40)
    assert attack.claimed_epsilon == plan.epsilon()
    assert 0 <= attack.right <= attack.guesses


def test_estimators_have_it():
    x, y = contract.X.numpy(), contract.Y.numpy()
    settings = {"epsilon": 5.0, "delta": 1e-3, "dataset_size": 60, "classes": [0, 1, 2], "bounds": (-3, 3)}
    model = dpbnn.sklearn.DPBayesClassifier(method="sghmc_like", **settings).fit(x, y)
    assert model.release_.settings["method"] == "sghmc_like"
    assert model.predict_proba(x).shape == (60, 3)
    with pytest.raises(dpbnn.DpbnnError, match="'sgd', 'sghmc_like', got 'hmc'"):
        dpbnn.sklearn.DPBayesClassifier(method="hmc", **settings).fit(x, y)


SCHEMA = """
target = "bought"
[columns.age]
type = "number"
low = 0
high = 100
[columns.bought]
type = "category"
values = ["no", "yes"]
"""


@pytest.mark.slow
def test_the_command_line_has_it(tmp_path):
    """The page's file, run as it says."""
    pytest.importorskip("pyarrow")
    (tmp_path / "sghmc_like.py").write_text(code("A method"))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    rows = "\n".join(f"{age % 100},{'yes' if age % 100 > 50 else 'no'}" for age in range(400))
    (tmp_path / "data.csv").write_text(f"age,bought\n{rows}\n")

    def run(words):
        command = [sys.executable, "sghmc_like.py", *words.split()]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert "sghmc_like" in run("fit --help").stdout
    fitted = run("fit data.csv --schema schema.toml --epsilon 2 --out model --method sghmc_like --quiet")
    assert fitted.returncode == 0, fitted.stderr
    assert dpbnn.load(tmp_path / "model").settings["friction"] == 0.1
    sizes = "plan --dataset-size 1000 --batch-size 100 --steps 50 --json --method"
    relation = "--clip-norm 1 --learning-rate 1e-4 --temperature 1"
    ours, plain = (json.loads(run(f"{sizes} {name} {relation}").stdout) for name in ("sghmc_like", "sgld"))
    assert ours.pop("method") == "sghmc_like"
    assert ours.items() <= plain.items()
