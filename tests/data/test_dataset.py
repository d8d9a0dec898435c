"""Data sets whose draws could not be kept secret, and those that reuse memory, are refused."""

import random
from functools import partial

import numpy as np
import pytest
import torch

import dpbnn
from dpbnn.data.records import as_records
from dpbnn.errors import DpbnnError
from tests.data.datasets import Augmented, Pairs, X, Y, fit_on


@pytest.mark.parametrize("draw", [np.random.rand, random.random], ids=["NumPy", "Python"])
def test_draws_of_a_dataset_that_anybody_may_have_seeded_are_refused(draw):
    with pytest.raises(dpbnn.DpbnnError, match=r"must draw by torch.*Execution\(dataset_workers=1\)"):
        fit_on(Augmented(draw))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(0).random, partial(torch.rand, (), generator=torch.Generator().manual_seed(0))],
    ids=["NumPy", "torch"],
)
def test_draws_of_a_dataset_from_a_generator_of_its_own_are_refused(generator, workers):
    with pytest.raises(dpbnn.DpbnnError, match="leave the generator out"):
        fit_on(Augmented(generator), execution=dpbnn.Execution(dataset_workers=workers))


def test_a_dataset_that_reads_all_records_into_one_buffer_is_refused():
    class Reused(Pairs):
        buffer = torch.zeros(3)

        def __getitem__(self, index):
            return self.buffer.copy_(X[index]), Y[index]

    with pytest.raises(DpbnnError, match="one memory for two; return copies"):
        as_records(Reused(), None, torch.float32)
