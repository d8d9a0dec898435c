"""What reading a record draws belongs to the record, comes from the key and leaves the process alone."""

import pickle
import random
import traceback
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import dpbnn
from dpbnn.data.process_generators import generators_of_the_process
from dpbnn.data.reading import BatchReader
from dpbnn.data.records import as_records
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness
from tests.data.datasets import Augmented, Pairs, X, Y, fit_on


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


@dataclass
class Chosen:
    """A sampler of the same rows in every step."""

    rows: list[int]
    randomness: Randomness

    def batch(self, step):
        return np.array(self.rows)


def of_torch():
    return torch.rand(()) + torch.randn(())


def of_numpy():
    return np.random.rand() + np.random.normal()  # noqa: NPY002


def of_python():
    return random.random() + random.gauss()


def by_all():
    return of_torch() + of_numpy() + of_python()


DRAWS = [of_torch, of_numpy, of_python, by_all]
READ = [(0, of_torch), *((1, draw) for draw in DRAWS), (2, by_all)]


def drawn(draw, workers, rows=tuple(range(9)), first_step=0, randomness=None, dataset=Augmented):
    """What was drawn for each row in each of some steps."""
    records = as_records(dataset(draw), None, torch.float32)
    sampler = Chosen(rows, randomness or Randomness.from_seed(3))
    read = records.batches(sampler, first_step, 4, workers)
    return {
        (step, row): float(own[0]) - row
        for step, (x, _) in enumerate(read, first_step)
        for row, own in zip(rows, x, strict=True)
    }


@pytest.mark.guarantees("What reading a record draws is a function of the secret key, the step and the record's row.")
@pytest.mark.parametrize(("workers", "draw"), READ)
def test_what_reading_a_record_draws_does_not_depend_on_the_others(workers, draw):
    everybody, without = drawn(draw, workers), drawn(draw, workers, rows=(1, 2, 5, 8))
    assert len(set(everybody.values())) == len(everybody) == 36
    assert all(everybody[place] == value for place, value in without.items())


class SometimesAugmented(Augmented):
    """The first records draw nothing, nor do most others."""

    def __getitem__(self, row):
        return torch.ones(3) * row + (float(self.draw()) if row in (5, 8) else 0.0), row % 2


@pytest.mark.parametrize(("workers", "draw"), READ)
def test_a_draw_that_nobody_expected_is_the_records_own_too(workers, draw):
    found = [drawn(draw, workers, rows=rows, dataset=SometimesAugmented) for rows in ((1, 5, 8), (2, 3, 8), (8, 5))]
    for step in range(4):
        assert len({own[step, 8] for own in found}) == 1
        assert found[0][step, 5] == found[2][step, 5] != found[0][step, 8] != 0.0


@pytest.mark.parametrize(("workers", "draw"), READ)
def test_a_run_that_goes_on_draws_what_it_would_have_drawn(workers, draw):
    whole, rest = drawn(draw, workers), drawn(draw, workers, first_step=2)
    assert rest == {place: value for place, value in whole.items() if place[0] >= 2}


def test_torchs_draws_are_the_same_with_any_number_of_workers():
    assert drawn(of_torch, 0) == drawn(of_torch, 1) == drawn(of_torch, 2)


@pytest.mark.parametrize(("workers", "draw"), READ)
def test_what_reading_draws_comes_from_the_key_and_leaves_the_process_alone(workers, draw):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = generators_of_the_process(), torch.get_rng_state().tolist()
        found.append(drawn(draw, workers))
        assert before == (generators_of_the_process(), torch.get_rng_state().tolist())
    assert found[0] == found[1] != drawn(draw, workers, randomness=Randomness.from_seed(4))


@pytest.mark.parametrize(("workers", "draw"), READ)
def test_no_seed_of_63_bits_decides_what_reading_draws(workers, draw, monkeypatch):
    """A torch generator on a CPU uses 32 bits of its seed: here those of two keys agree."""
    monkeypatch.setattr(Randomness, "torch_seed", lambda *_: 5)
    one, other = (drawn(draw, workers, randomness=Randomness.from_seed(seed)) for seed in (1, 2))
    assert not set(one.values()) & set(other.values())


def test_a_data_set_that_draws_is_the_same_every_time_that_it_is_read_whole():
    records = as_records(Augmented(by_all), None, torch.float32)
    first, again = next(records.all()), next(records.all())
    assert torch.equal(first[0], again[0])


@pytest.mark.guarantees("What reading a record draws is a function of the secret key, the step and the record's row.")
def test_runs_with_workers_repeat_with_the_same_key_alone():
    how = {"execution": dpbnn.Execution(dataset_workers=1)}
    first, again, other = (fit_on(Augmented(by_all), unsafe_seed=seed, **how) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_key_is_not_shown_where_records_are_read():
    empty = X[:0], Y[:0]
    reader = BatchReader(TensorDataset(X, Y), empty, torch.float32, Randomness.from_seed(0))
    assert str(reader.randomness.key) not in repr(reader)
    sent = pickle.loads(pickle.dumps(reader))  # as to a worker that is spawned
    assert sent.randomness == reader.randomness
    assert torch.equal(sent[3, []][0], X[:0])
    assert torch.equal(sent[3, [1, 4]][0][1], X[4])


class Unreadable(Dataset):
    """Fails for one record, in one way or another, or has one that is unlike the others."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 7919

    def __getitem__(self, row):
        if row == 5003 and self.how == "raises":
            raise KeyError(f"no file of {row}")
        return torch.zeros(6011 if row == 5003 and self.how == "has another shape" else 3), 0


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["raises", "has another shape"])
def test_an_error_of_reading_says_nothing_of_the_batch(how, workers):
    sampler = Chosen([*range(1009), 5003], Randomness.from_seed(0))
    records = as_records(Unreadable(how), None, torch.float32)
    with pytest.raises(DpbnnError, match="got KeyError from one" if how == "raises" else "one shape and type") as error:
        list(records.batches(sampler, 0, 1, workers))
    assert "\n" not in str(error.value)
    assert error.value.__context__ is None, "which others might show"
    said = "".join(traceback.format_exception(error.value))
    assert not any(secret in said for secret in ("5003", "6011", "1009", "1010"))


class Rarely(Pairs):
    """Draws for every third record alone, by a function that a look at the first records does not see drawing."""

    def __init__(self, draw):
        self.draw = draw

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x + self.draw() if index % 3 == 2 else x), y


def read_in_one_step(rows, draw):
    """What is read in this process of these rows, by record."""
    records = as_records(Rarely(draw), None, torch.float32)
    ((x, _),) = records._read([(4, rows)], Randomness.from_seed(0), workers=0)
    return dict(zip(rows, x, strict=True))


@pytest.mark.parametrize("draw", [np.random.normal, np.random.rand, random.random, lambda: random.gauss(0, 1)])
def test_a_rare_draw_outside_torch_is_the_records_own_and_leaves_the_process_alone(draw):
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    before = generators_of_the_process()
    few = read_in_one_step([2, 5, 8, 9], draw)
    assert generators_of_the_process() == before
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    more = read_in_one_step([0, 2, 3, 5, 8, 9, 11], draw)
    assert all(torch.equal(few[row], more[row]) for row in few)
    assert not torch.equal(few[2], X[2]), "it has drawn"
    assert len({float(few[row][0] - X[row][0]) for row in (2, 5, 8)}) == 3
