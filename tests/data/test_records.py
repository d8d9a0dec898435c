"""Records come from memory or a Dataset, by Poisson sampling alone."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from dpbnn.data.records import as_records
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler
from tests.data.datasets import Pairs, X, Y


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def batches(records, rate, workers=0):
    sampler = PoissonSampler(50, rate, Randomness.from_seed(0))
    return list(records.batches(sampler, 2, 30, workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rate", [0.02, 0.2, 1.0])
def test_a_dataset_gives_the_same_batches_as_memory_empty_ones_included(rate, workers):
    from_memory = batches(as_records(X, Y, torch.float32), rate)
    for source in (Pairs(), TensorDataset(X, Y)):
        from_dataset = batches(as_records(source, None, torch.float32), rate, workers)
        assert len(from_dataset) == 28
        for (x, y), (other_x, other_y) in zip(from_memory, from_dataset, strict=True):
            assert torch.equal(x, other_x)
            assert torch.equal(y, other_y)
    assert any(len(x) == 0 for x, _ in from_memory) == (rate == 0.02)


def test_arrays_take_the_models_type_and_labels_become_long():
    records = as_records(X.numpy().astype(np.float64), Y.numpy().astype(np.int32), torch.bfloat16)
    x, y = records.empty
    assert (x.dtype, y.dtype, x.shape, y.shape) == (torch.bfloat16, torch.int64, (0, 3), (0,))
    assert as_records(X, X[:, 0].double(), torch.bfloat16).empty[1].dtype == torch.float32


def test_lists_frames_and_arrays_that_may_not_be_written_to_are_taken_as_arrays():
    class Frame:
        """What a pandas DataFrame has in common with others of its kind."""

        def to_numpy(self):
            values = X.double().numpy().copy()
            values.flags.writeable = False
            return values

    for x in (Frame(), X.tolist()):
        records = as_records(x, Y.tolist(), torch.float32)
        assert torch.allclose(records.x, X)
        assert torch.equal(records.y, Y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (DataLoader(TensorDataset(X, Y)), None, "pass the data itself"),
        (Stream(), None, "map-style Dataset, got Stream"),
        (RandomSampler(TensorDataset(X, Y)), None, "got RandomSampler"),
        (X, None, "y must be given"),
        (X, Y[:-1], "one row per record, got different numbers"),
        (TensorDataset(X, Y), Y, "y must be None when X is a Dataset"),
        (TensorDataset(X), None, r"\(x, y\) pairs"),
        (TensorDataset(X[:0], Y[:0]), None, "at least one record"),
        ([[1.0, 2.0], [1.0]], [1, 1], "rows of one length"),
        ({"a": 1}, None, "got dict"),
        (np.array([["a"]]), np.array([1]), "X must hold numbers, got <U1"),
        (torch.tensor(1.0), Y, "one row per record"),
    ],
)
def test_anything_else_is_refused(x, y, message):
    with pytest.raises(DpbnnError, match=message):
        as_records(x, y, torch.float32)
