"""Noise of several runs that is drawn at once: each run has its own."""

import pytest
import torch

from dpbnn.privacy.noise import cuda as cuda_noise
from dpbnn.privacy.noise.graph_noise import GraphNoise
from dpbnn.privacy.noise.randomness import Randomness

CPU = torch.device("cpu")


def drawn(sizes, types=None):
    noise = GraphNoise(Randomness.from_seed(3), CPU)
    noise.begin(5)
    types = types or [torch.float32] * len(sizes)
    releases = [
        {"a": torch.zeros(size - 2, dtype=t), "b": torch.zeros(2, dtype=t)}
        for size, t in zip(sizes, types, strict=True)
    ]
    noise.draw_ahead(releases)
    return [noise.draw_on_device(5, CPU)(size, dtype) for size, dtype in zip(sizes, types, strict=True)]


@pytest.mark.parametrize("chunk", [10**6, 8000])  # all at once, and one by one
def test_every_run_has_noise_of_its_own_and_of_the_right_size(monkeypatch, chunk):
    monkeypatch.setattr(cuda_noise, "CHUNK", chunk)
    every = drawn([4001, 7000, 4001])
    assert [len(one) for one in every] == [4001, 7000, 4001]
    numbers = torch.cat(every)
    assert len(numbers.unique()) > 0.99 * len(numbers)
    assert abs(numbers.std() / 2**0.5 - 1) < 0.04
    for one, other in ((0, 1), (0, 2), (1, 2)):
        correlation = torch.corrcoef(torch.stack([every[one][:4001], every[other][:4001]]))[0, 1]
        assert abs(correlation) < 5 / 4001**0.5


def test_the_only_run_has_what_it_would_draw_later():
    later = GraphNoise(Randomness.from_seed(3), CPU)
    later.begin(5)
    assert torch.equal(drawn([1001])[0], later.draw_on_device(5, CPU)(1001, torch.float32))


def test_types_may_differ():
    assert [one.dtype for one in drawn([10, 20], [torch.float32, torch.float64])] == [torch.float32, torch.float64]


@pytest.mark.parametrize(("count", "dtype"), [(9, torch.float32), (1, torch.float32), (10, torch.float64)])
def test_noise_that_does_not_fit_is_never_used(count, dtype):
    noise = GraphNoise(Randomness.from_seed(3), CPU)
    noise.begin(5)
    noise.draw_ahead([{"a": torch.zeros(10)}])
    with pytest.raises(RuntimeError, match="nothing must be released"):
        noise.draw_on_device(5, CPU)(count, dtype)


def test_one_wide_number_makes_all_noise_of_a_release_wide():
    noise = GraphNoise(Randomness.from_seed(3), CPU)
    noise.begin(5)
    noise.draw_ahead([{"a": torch.zeros(10), "b": torch.zeros(10, dtype=torch.float64)}])
    assert noise.draw_on_device(5, CPU)(20, torch.float64).dtype == torch.float64
