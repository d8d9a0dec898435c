"""Samples are the iterates themselves, in the room there is, in memory or on disk."""

import pytest
import torch

import dpbnn
from tests.methods.store.chains import LIKE, chain, kept


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


def test_before_the_first_sample_the_posterior_is_the_current_weights():
    for keeping in (dpbnn.KeepSamples(), dpbnn.KeepSummary()):
        store = keeping.open(LIKE, 100)
        (weights,) = store.posterior({name: values + 3 for name, values in LIKE.items()}).draw(10, seed=0)
        assert (weights["a.bias"] == 3).all()
