"""Noise of several runs that is drawn at once: each run has its own."""

import pytest
import torch

from dpbnn.privacy.noise import cuda as cuda_noise
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness

CPU = torch.device("cpu")


def noise_on():
    noise = GraphNoise(Randomness.from_seed(3), CPU)
    noise.begin(5)
    return noise


@pytest.fixture(autouse=True)
def _as_on_a_device(monkeypatch):
    """A device's generator draws: here it is one on the CPU."""
    monkeypatch.setattr(GraphNoise, "_draws_on_device", True)


def drawn(sizes, types=None):
    types = types or [torch.float32] * len(sizes)
    releases = [
        {"a": torch.zeros(size - 2, dtype=t), "b": torch.zeros(2, dtype=t)}
        for size, t in zip(sizes, types, strict=True)
    ]
    for source, release in zip(noise_on().sources(releases), releases, strict=True):
        source.add(list(release.values()), 1.0, 1.0, 5)
    return [torch.cat(list(release.values())) for release in releases]


@pytest.mark.parametrize("chunk", [10**6, 8000])  # all at once, and one by one
def test_every_run_has_noise_of_its_own_and_of_the_right_size(monkeypatch, chunk):
    monkeypatch.setattr(cuda_noise, "CHUNK", chunk)
    every = drawn([4001, 7000, 4001])
    numbers = torch.cat(every)
    assert len(numbers.unique()) > 0.99 * len(numbers)
    assert abs(numbers.std() - 1) < 0.04
    for one, other in ((0, 1), (0, 2), (1, 2)):
        correlation = torch.corrcoef(torch.stack([every[one][:4001], every[other][:4001]]))[0, 1]
        assert abs(correlation) < 5 / 4001**0.5


def test_the_only_run_has_what_it_draws_when_it_is_alone():
    place, seeded = torch.zeros(1001), torch.Generator().manual_seed(Randomness.from_seed(3).torch_seed("noise", 5))
    cuda_noise.add_normals([place], 1.0, cuda_noise.drawn(seeded))
    assert torch.equal(drawn([1001])[0], place)


def test_types_may_differ():
    assert [one.dtype for one in drawn([10, 20], [torch.float32, torch.float64])] == [torch.float32, torch.float64]


@pytest.mark.parametrize(("count", "dtype"), [(9, torch.float32), (1, torch.float32), (10, torch.float64)])
def test_noise_that_does_not_fit_is_never_used(count, dtype):
    (source,) = noise_on().sources([{"a": torch.zeros(10)}])
    with pytest.raises(RuntimeError, match="nothing must be released"):
        source.add([torch.zeros(count, dtype=dtype)], 1.0, 1.0, 5)


def test_noise_is_never_added_twice():
    (source,) = noise_on().sources([{"a": torch.zeros(10)}])
    source.add([torch.zeros(10)], 1.0, 1.0, 5)
    with pytest.raises(RuntimeError, match="nothing must be released"):
        source.add([torch.zeros(10)], 1.0, 1.0, 5)


def test_one_wide_number_makes_all_noise_of_a_release_wide():
    wide = torch.zeros(10, dtype=torch.float64)
    (source,) = noise_on().sources([{"a": torch.zeros(10), "b": wide}])
    source.add([torch.zeros(10), wide], 1.0, 1.0, 5)
    assert not torch.equal(wide, wide.float().double())


def test_on_a_cpu_each_run_draws_when_its_turn_comes(monkeypatch):
    monkeypatch.setattr(GraphNoise, "_draws_on_device", False)
    noise = noise_on()
    assert noise.sources([{"a": torch.zeros(3)}] * 2) == [noise, noise]
