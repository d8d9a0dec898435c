"""Noise on a CPU: the same from any number of threads, independent between groups, and errors come through."""

import numpy as np
import pytest
import torch

from dpbnn.privacy.noise import cpu as cpu_noise
from dpbnn.privacy.noise.randomness import Randomness

CHUNK = 2**12


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def parts(step):
    return lambda part: Randomness.from_seed(5).generator("noise", step, part)


def noise(sizes, step=0, scale=1.0, dtype=torch.float32):
    tensors = [torch.zeros(size, dtype=dtype) for size in sizes]
    cpu_noise.add_normals(tensors, scale, parts(step), CHUNK)
    return torch.cat([values.flatten() for values in tensors])


def test_noise_does_not_depend_on_the_number_of_threads(threads):
    sizes = [(3, 5), (10 * CHUNK + 17,), (1,), (), (0,), (70, 90)]
    found = noise(sizes)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(found, noise(sizes))
    torch.set_num_threads(before)
    assert not torch.equal(found, noise(sizes, step=1))
    assert found.count_nonzero() == len(found)


def test_groups_and_halves_of_groups_are_independent():
    rows = noise([(64 * CHUNK,)]).view(128, CHUNK // 2)
    correlations = torch.corrcoef(rows.double()) - torch.eye(128, dtype=torch.float64)
    assert correlations.abs().max() < 6 / (CHUNK // 2) ** 0.5
    assert len(rows.unique()) > 0.98 * rows.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_added_with_its_scale(dtype):
    values = torch.full((300, 1000), 100.0, dtype=dtype)
    cpu_noise.add_normals([values], 3.0, parts(0), CHUNK)
    assert abs(float(values.double().mean()) - 100) < 5 * 3 / 300_000**0.5
    for factor, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        assert (abs(float(values.double().std()) / 3 / factor - 1) < 5 / 600_000**0.5) == fits


def test_tensors_of_different_types_share_no_group():
    tensors = [torch.zeros(10), torch.zeros(10, dtype=torch.float64), torch.zeros(10)]
    cpu_noise.add_normals(tensors, 1.0, parts(0), CHUNK)
    assert len({float(value) for values in tensors for value in values}) == 30


def test_an_error_in_any_thread_comes_through(threads):
    def generator(part):
        raise ValueError("no generator")

    with pytest.raises(ValueError, match="no generator"):
        cpu_noise.add_normals([torch.zeros(10 * CHUNK)], 1.0, generator, CHUNK)


def test_without_a_library_to_call_the_calling_thread_does_it_all(monkeypatch):
    found = noise([(10 * CHUNK,)])
    monkeypatch.setattr(cpu_noise, "_openmp", lambda: None)
    assert torch.equal(found, noise([(10 * CHUNK,)]))


def test_memory_that_is_used_again_leaves_nothing_behind():
    first = noise([(3 * CHUNK,)], step=0)
    noise([(5 * CHUNK,)], step=1)
    assert np.array_equal(first, noise([(3 * CHUNK,)], step=0))
