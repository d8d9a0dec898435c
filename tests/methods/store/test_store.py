"""What is kept of a chain: the right iterates, in the room there is; and a summary with the chain's own moments."""

import os
import shutil

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.methods.store import reserved, sample_folders
from dpbnn.methods.store.window import Window
from dpbnn.posterior import LowRankGaussian, WeightSamples

SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "b.weight": (2, 3)}
LIKE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def chain(steps, seed=0, dtype=torch.float32):
    """Iterates with strong correlations between weights, and a mean far from zero."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    loadings = torch.randn(4, size, generator=generator) * torch.tensor([3.0, 1.0, 0.3, 0.1])[:, None]
    flat = torch.randn(steps, 4, generator=generator) @ loadings + 0.2 * torch.randn(steps, size, generator=generator)
    flat = flat + 10
    for row in flat.to(dtype):
        parts = row.split([torch.Size(shape).numel() for shape in SHAPES.values()])
        yield {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def offer(store, step, weights, importance):
    store.expect(step)
    store.write(step, weights)
    store.enter(step, weights, importance)


def kept(keeping, steps=200, importance=lambda step: 1.0, **options):
    store = keeping.open(LIKE, steps)
    for step, weights in enumerate(chain(steps, **options)):
        offer(store, step, weights, importance(step))
    return store


def flat_samples(steps=200, first=100, **options):
    rows = [torch.cat([v.flatten() for v in weights.values()]) for weights in chain(steps, **options)]
    return torch.stack(rows)[first:]


@pytest.mark.parametrize(
    ("steps", "burn_in", "thin", "at_most", "expected"),
    [
        (10, None, None, 1000, [5, 6, 7, 8, 9]),
        (11, None, None, 1000, [5, 6, 7, 8, 9, 10]),
        (10, 0, None, 4, [0, 3, 6, 9]),
        (10, 2, 3, 1000, [3, 6, 9]),
        (3515, None, None, 1000, list(range(1758, 3515, 2))),
    ],
)
def test_the_window_drops_the_burn_in_and_thins_back_from_the_last(steps, burn_in, thin, at_most, expected):
    window = Window.over(steps, burn_in, thin, at_most)
    assert [step for step in range(steps) if window.holds(step)] == expected
    assert window.count == len(expected)


@pytest.mark.parametrize(
    ("keeping", "words"),
    [
        (dpbnn.KeepSamples(burn_in=10), "burn_in must be below"),
        (dpbnn.KeepSamples(burn_in=9), "At least 2 samples must be kept, got 1"),
        (dpbnn.KeepSamples(thin=100), "At least 2 samples must be kept"),
        (dpbnn.KeepSamples(max_bytes=100), "room for 1|At least 2"),
        (dpbnn.KeepSamples(thin=1, max_samples=3), "thin must leave at most 3 samples, got 5"),
        (dpbnn.KeepSummary(burn_in=9), "At least 2"),
    ],
)
def test_too_few_or_too_many_samples_are_refused_before_training(keeping, words):
    with pytest.raises(dpbnn.DpbnnError, match=words):
        keeping.open(LIKE, 10)
    plan = dpbnn.PrivacyPlan(20, 5, 10, clip_norm=1.0, noise_multiplier=1.0, delta=1e-2)
    if keeping.burn_in:
        with pytest.raises(dpbnn.DpbnnError, match=words):
            dpbnn.fit(
                nn.Linear(2, 2),
                torch.randn(20, 2),
                torch.arange(20) % 2,
                method=dpbnn.SGLD(1e-3, keep_as=keeping),
                plan=plan,
                likelihood=dpbnn.Categorical(),
            )


def test_arguments_are_validated():
    for keeping, options in [
        (dpbnn.KeepSamples, {"burn_in": -1}),
        (dpbnn.KeepSamples, {"thin": 0}),
        (dpbnn.KeepSamples, {"max_samples": 1}),
        (dpbnn.KeepSamples, {"dtype": "int8"}),
        (dpbnn.KeepSummary, {"rank": 0}),
        (dpbnn.KeepSummary, {"thin": 0}),
    ]:
        with pytest.raises(dpbnn.DpbnnError, match=next(iter(options))):
            keeping(**options)


def test_room_in_memory_bounds_the_samples_and_half_precision_doubles_them():
    size = 4 * sum(values.numel() for values in LIKE.values())
    counts = [
        dpbnn.KeepSamples(max_bytes=10 * size, dtype=dtype, burn_in=0).open(LIKE, 1000).window.count
        for dtype in ("float32", "bfloat16")
    ]
    assert counts == [10, 20]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_samples_are_the_iterates_themselves(tmp_path, on_disk, dtype):
    path = tmp_path / "samples" if on_disk else None
    posterior = kept(dpbnn.KeepSamples(thin=10, dtype=dtype, path=path)).posterior({})
    assert len(posterior) == 10
    expected = list(chain(200))[109::10]
    for found, weights in zip(posterior.draw(100, seed=0), expected, strict=True):
        for name, values in weights.items():
            assert found[name].dtype == torch.float32
            assert torch.allclose(found[name], values, rtol=0 if dtype is None else 1e-2)
    if on_disk:
        assert sum(file.stat().st_size for file in path.glob("*.bin")) == 10 * 21 * (4 if dtype is None else 2)


def half(store, **options):
    """Most of a chain; 5 samples of it are kept."""
    for step, weights in enumerate(list(chain(200, **options))[:150]):
        offer(store, step, weights, 1.0)
    return store


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
            offer(first, step, weights, 1.0)
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
                offer(again, step, weights, 1.0)
        expected = list(chain(200))[109::10]
        for found, weights in zip(again.posterior({}).draw(100, seed=0), expected, strict=True):
            assert all(torch.equal(found[name], values) for name, values in weights.items())
    else:
        with pytest.raises(dpbnn.DpbnnError, match="not those of the interrupted run"):
            again.load_state_dict(saved)


def test_before_the_first_sample_the_posterior_is_the_current_weights():
    for keeping in (dpbnn.KeepSamples(), dpbnn.KeepSummary()):
        store = keeping.open(LIKE, 100)
        (weights,) = store.posterior({name: values + 3 for name, values in LIKE.items()}).draw(10, seed=0)
        assert (weights["a.bias"] == 3).all()


@pytest.mark.parametrize("rank", [1, 4, 8, 30])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_summary_has_the_chains_mean_and_variances_exactly_and_a_valid_diagonal(rank, weighted):
    importance = (lambda step: 1.0 + (step % 3)) if weighted else (lambda step: 1.0)
    posterior = kept(dpbnn.KeepSummary(rank=rank), importance=importance, dtype=torch.float32).posterior({})
    assert isinstance(posterior, LowRankGaussian)
    samples = flat_samples().double()
    share = torch.tensor([importance(step) for step in range(100, 200)], dtype=torch.float64)
    mean = (share @ samples) / share.sum()
    variance = (share @ (samples - mean).square()) / share.sum() * 100 / 99
    flat = {
        part: torch.cat(
            [v.flatten(1 if part == "directions" else 0) for v in getattr(posterior, part).values()], dim=-1
        ).double()
        for part in ("mean", "diagonal", "directions")
    }
    assert torch.allclose(flat["mean"], mean, rtol=1e-5)
    assert (flat["diagonal"] >= 0).all()
    total = flat["diagonal"] + flat["directions"].square().sum(dim=0)
    assert torch.allclose(total, variance, rtol=1e-3)
    assert len(flat["directions"]) <= rank
    uncorrected = variance + flat["directions"].square().sum(dim=0)
    assert not torch.allclose(uncorrected, variance, rtol=0.1)  # the diagonal that forgets what the directions hold


def test_a_summary_holds_the_correlations_that_matter():
    posterior = kept(dpbnn.KeepSummary(rank=4)).posterior({})
    samples = flat_samples().double()
    covariance = torch.cov(samples.T)
    directions = torch.cat([v.flatten(1) for v in posterior.directions.values()], dim=1).double()
    diagonal = torch.cat([v.flatten() for v in posterior.diagonal.values()]).double()
    ours = directions.T @ directions + diagonal.diag()
    assert torch.linalg.matrix_norm(ours - covariance, 2) < 0.02 * torch.linalg.matrix_norm(covariance, 2)
    by_variance_alone = covariance.diagonal().diag()
    assert torch.linalg.matrix_norm(by_variance_alone - covariance, 2) > 0.5 * torch.linalg.matrix_norm(covariance, 2)


def test_draws_of_a_summary_have_its_moments():
    posterior = kept(dpbnn.KeepSummary(rank=4)).posterior({})
    draws = torch.stack([torch.cat([v.flatten() for v in w.values()]) for w in posterior.draw(6000, seed=1)]).double()
    samples = flat_samples().double()
    order = list(SHAPES)
    assert list(next(iter(posterior.draw(1, seed=1)))) == order
    assert torch.allclose(draws.mean(dim=0), samples.mean(dim=0), atol=0.25)
    ratio = draws.var(dim=0) / samples.var(dim=0)
    assert (ratio - 1).abs().max() < 0.1
    assert torch.allclose(torch.cov(draws.T), torch.cov(samples.T), atol=0.06 * float(torch.cov(samples.T).max()))


def test_a_summary_needs_no_more_room_for_a_longer_chain():
    def numbers(steps):
        store = kept(dpbnn.KeepSummary(rank=4, thin=1, burn_in=0), steps)
        return sum(
            v.numel() for part in ("mean", "squares", "directions", "waiting") for v in getattr(store, part).values()
        )

    assert numbers(2000) == numbers(100) <= (1.25 * 4 + 2) * 21


def test_a_summary_of_a_chain_that_diverges_says_so_and_loses_nothing(tmp_path):
    plan = dpbnn.PrivacyPlan(dataset_size=20, batch_size=5, steps=6, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    method = dpbnn.SGLD(1e12, keep_as=dpbnn.KeepSummary(rank=2, burn_in=0))
    settings = {"method": method, "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    with pytest.warns(dpbnn.DpbnnWarning) as said:
        release = dpbnn.fit(nn.Linear(3, 2), torch.randn(20, 3), torch.arange(20) % 2, **settings)
    assert "has diverged" in str(said[-1].message)
    assert release.settings["releases_charged"] == 6
    release.save(tmp_path / "release")


def test_draws_follow_importance():
    samples = WeightSamples({"w": torch.arange(4.0)[:, None]}, torch.tensor([1.0, 1.0, 6.0, 2.0]))
    counts = torch.zeros(4)
    for seed in range(500):
        for weights in samples.draw(4, seed):
            counts[int(weights["w"])] += 1
    assert (counts / counts.sum()).tolist() == pytest.approx([0.1, 0.1, 0.6, 0.2], abs=0.02)
