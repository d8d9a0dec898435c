"""Several runs on the same records, on a CPU one after another."""

import pytest
import torch
from torch import nn

import dpbnn

X, Y = torch.randn(120, 4, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 3
PLAN = dpbnn.PrivacyPlan(120, 12, 15, 1.0, 2.0, 1e-3)


def setup(rate=0.1, plan=PLAN, **options):
    return dpbnn.Setup(nn.Linear(4, 3), dpbnn.SGD(rate), plan, dpbnn.Categorical(), **options)


def test_every_setup_gets_its_own_release_in_order():
    setups = [setup(0.1), setup(0.3, dpbnn.PrivacyPlan(120, 12, 7, 1.0, 3.0, 1e-3)), setup(0.1)]
    releases = dpbnn.fit_many(setups, X, Y, progress=False)
    assert [release.settings["learning_rate"] for release in releases] == [0.1, 0.3, 0.1]
    assert [release.settings["releases_charged"] for release in releases] == [15, 7, 15]
    assert [release.guarantee.epsilon for release in releases] == pytest.approx(
        [
            dpbnn.fit(s.model, X, Y, method=s.method, plan=s.plan, likelihood=s.likelihood).guarantee.epsilon
            for s in setups
        ]
    )
    first, last = (next(iter(releases[index].posterior.draw(1, seed=0)))["weight"] for index in (0, 2))
    assert not torch.allclose(first, last, atol=1e-4)


@pytest.mark.guarantees("Each run has batches and noise of its own.")
def test_equal_setups_draw_different_noise():
    model, empty = nn.Linear(4, 3), X[:0]
    setups = [dpbnn.Setup(model, dpbnn.SGD(0.1), PLAN, dpbnn.Categorical(), seed=1) for _ in range(2)]
    one, other = (next(iter(r.posterior.draw(1, seed=0))) for r in dpbnn.fit_many(setups, empty, Y[:0], progress=False))
    assert not torch.equal(one["weight"], other["weight"])


@pytest.mark.parametrize("passed", [iter, tuple, lambda setups: (each for each in setups)])
def test_setups_may_come_as_anything_that_can_be_gone_through_once(passed):
    releases = dpbnn.fit_many(passed([setup(0.1), setup(0.3)]), X, Y, progress=False)
    assert [release.settings["learning_rate"] for release in releases] == [0.1, 0.3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, r"^setups must be a list of Setup\(\.\.\.\), got None\.$"),
        (setup(), r"^setups must be a list of Setup\(\.\.\.\), got a Setup\.$"),
        ([], r"^setups must be at least one Setup\(\.\.\.\), got \[\]\.$"),
        (iter(()), r"^setups must be at least one Setup"),
        ([setup(), nn.Linear(4, 3)], r"^setups\[1\] must be a Setup\(\.\.\.\), got Linear"),
        (nn.Sequential(nn.Linear(4, 3)), r"^setups\[0\] must be a Setup"),
    ],
    ids=["nothing", "one alone", "an empty list", "an empty iterator", "a module", "a model"],
)
def test_what_is_no_list_of_setups_is_refused(wrong, message):
    with pytest.raises(dpbnn.DpbnnError, match=message):
        dpbnn.fit_many(wrong, X, Y)


def test_a_bad_setup_is_refused_before_any_run_begins(monkeypatch):
    from dpbnn.training.steps import eager

    monkeypatch.setattr(eager, "add_noise", lambda *_: pytest.fail("a run has begun"))
    bad = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(dpbnn.DpbnnError, match=r"^setups\[1\]: BatchNorm1d '0' mixes records"):
        dpbnn.fit_many([setup(), dpbnn.Setup(bad, dpbnn.SGD(0.1), PLAN, dpbnn.Categorical())], X, Y)
