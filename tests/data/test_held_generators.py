"""A generator that a data set holds is seen, wherever it holds it; those of the process are not its."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from dpbnn.data.held_generators import holds_generator
from dpbnn.data.records import as_records
from dpbnn.errors import DpbnnError
from tests.data.datasets import Pairs, X


class Erasing(Pairs):
    """Draws by a generator that it holds somewhere, and shows it rarely."""

    def __init__(self, hold):
        self.hold = hold


class WithSlots:
    __slots__ = ("rng",)

    def __init__(self, rng):
        self.rng = rng


GLOBAL = np.random.default_rng(0)


def by_a_global():
    return GLOBAL.random() < 0.01


class WithStaticMethod:
    @staticmethod
    def is_rare():
        return by_a_global()


class WithProperty:
    @property
    def is_rare(self):
        return by_a_global()


def holders():
    rng = np.random.default_rng(0)
    return {
        "attribute": rng,
        "list": [[rng]],
        "bound method": rng.random,
        "closure": lambda: rng.random(),
        "global": by_a_global,
        "global, in a function inside": lambda: [GLOBAL.random() for _ in range(3)],
        "static method": WithStaticMethod(),
        "property": WithProperty(),
        "partial": partial(max, rng),
        "slots": WithSlots(rng),
        "object": Erasing(rng),
        "torch": torch.Generator(),
        "NumPy, old": np.random.RandomState(0),
        "NumPy, bits": np.random.PCG64(0),
        "Python": random.Random(0),
    }


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("hold", holders())
def test_a_dataset_that_holds_a_generator_is_refused_however_rarely_it_draws(hold, workers):
    with pytest.raises(DpbnnError, match="leave the generator out"):
        as_records(Erasing(holders()[hold]), None, torch.float32).refuse_known_draws(workers)


@pytest.mark.parametrize("hold", [np.random.rand, random.random, torch.rand, np.random, torch.nn.Dropout(0.5), X])
def test_generators_of_the_process_are_no_generators_of_a_datasets_own(hold):
    assert not as_records(Erasing(hold), None, torch.float32).draws_unseen


def test_objects_that_hold_each_other_are_looked_through_once():
    first, second = [], []
    first.append(second)
    second.append(first)
    assert not holds_generator(first)
    second.append(random.Random(0))
    assert holds_generator(first)


def test_of_a_long_list_the_first_entries_show_what_the_others_are_like():
    assert holds_generator([np.random.default_rng(0)] * 5000)
    assert not holds_generator([0.0] * 5000 + [np.random.default_rng(0)]), "else every record would be visited"
