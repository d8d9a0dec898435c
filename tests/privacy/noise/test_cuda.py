"""The arithmetic of the noise on a CUDA device, which runs on a CPU too."""

import pytest
import torch
from scipy import stats

from dpbnn.device.flat import flat_copies
from dpbnn.privacy.noise import cuda as cuda_noise


def noise(shapes, seed=1, scale=1.0, dtype=torch.float32, is_flat=False):
    tensors = {str(index): torch.zeros(shape, dtype=dtype) for index, shape in enumerate(shapes)}
    tensors = flat_copies(tensors) if is_flat else tensors
    cuda_noise.add_normals(list(tensors.values()), scale, cuda_noise.drawn(torch.Generator().manual_seed(seed)))
    return torch.cat([values.flatten() for values in tensors.values()])


@pytest.mark.parametrize("shapes", [[(1,)], [(2,)], [(7, 3), (5,)], [(1000, 100), (1,), (3,)]])
def test_noise_depends_on_the_place_of_a_number_not_on_how_it_lies_in_memory(shapes):
    assert torch.equal(noise(shapes), noise(shapes, is_flat=True))


def test_chunks_are_drawn_one_after_another(monkeypatch):
    monkeypatch.setattr(cuda_noise, "CHUNK", 10)
    values = noise([(7, 3), (5,)])
    assert torch.equal(values, noise([(26,)]))
    assert len(values.unique()) == 26


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_normal_with_the_given_scale_and_independent(dtype):
    values = noise([(400_000,), (1,)], scale=3.0, dtype=dtype).double() / 3
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2, 1.02):
        assert stats.kstest((values * wrong).numpy(), "norm").pvalue < 1e-6
    half = (len(values) + 1) // 2
    first, second = values[: len(values) - half], values[half:]
    for one, other in ((first, second), (first.abs(), second.abs()), (first.square(), second.square())):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / len(first) ** 0.5


def test_the_largest_values_lie_far_beyond_those_of_the_normals_they_are_made_of(monkeypatch):
    end = 8.6
    made_of = iter([torch.full((3,), end, dtype=torch.float64), torch.full((3,), -end, dtype=torch.float64)])
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, generator: self.copy_(next(made_of)))
    values = noise([(6,)])
    assert float(values.abs().max()) == pytest.approx(end * 2**0.5, rel=1e-6)


def test_no_number_gets_noise_that_is_coarser_than_itself():
    """A float64 number with noise of float32 would show in the bits below."""
    for first, second in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        tensors = [torch.zeros(50, dtype=first), torch.zeros(50, dtype=second)]
        cuda_noise.add_normals(tensors, 2**0.5, cuda_noise.drawn(torch.Generator().manual_seed(1)))
        (wide,) = (values for values in tensors if values.dtype == torch.float64)
        assert not (wide == wide.float()).any()
