"""Records come from memory or a Dataset, by Poisson sampling alone."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import dpbnn
from dpbnn.privacy.randomness import Randomness
from dpbnn.privacy.sampling import PoissonSampler
from dpbnn.records import as_records
from dpbnn.types import DpbnnError

X, Y = torch.randn(50, 3), torch.randint(4, (50,))


class Pairs(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return X[index].numpy(), int(Y[index])


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


class Augmented(Dataset):
    """Draws while it is read, by torch or in another way."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 30

    def __getitem__(self, row):
        return torch.ones(3) * row + float(self.draw()), row % 2


def fit_on(dataset, **options):
    plan = dpbnn.PrivacyPlan(30, 10, 4, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    how = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical(), "unsafe_seed": 1}
    model = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return dpbnn.fit(model, dataset, **how | options).posterior.weights


@pytest.mark.parametrize("draw", [np.random.rand, random.random], ids=["NumPy", "Python"])
def test_draws_of_a_dataset_that_anybody_may_have_seeded_are_refused(draw):
    with pytest.raises(dpbnn.DpbnnError, match=r"must draw by torch.*Execution\(dataset_workers=1\)"):
        fit_on(Augmented(draw))


def test_draws_of_a_dataset_by_torch_come_from_the_runs_secret_key():
    dataset = Augmented(lambda: torch.rand(()))
    first = fit_on(dataset)
    for seed in (1, 2):
        torch.manual_seed(seed)
        again = fit_on(dataset)
        assert all(torch.equal(first[name], again[name]) for name in first)
    other = fit_on(dataset, unsafe_seed=2)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_reading_a_dataset_leaves_torchs_generator_alone():
    dataset = Augmented(lambda: torch.rand(()))
    before = torch.get_rng_state()
    list(as_records(dataset, None, torch.float32).all())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(0).random, partial(torch.rand, (), generator=torch.Generator().manual_seed(0))],
    ids=["NumPy", "torch"],
)
def test_draws_of_a_dataset_from_a_generator_of_its_own_are_refused(generator, workers):
    with pytest.raises(dpbnn.DpbnnError, match="leave the generator out"):
        fit_on(Augmented(generator), execution=dpbnn.Execution(dataset_workers=workers))
