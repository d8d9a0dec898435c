"""Records come from memory or a Dataset, by Poisson sampling alone."""

import pickle
import random
import traceback
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import dpbnn
from dpbnn.data.records import as_records, generators_of_the_process
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

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


@dataclass
class Chosen:
    """A sampler of the same rows in every step."""

    rows: list[int]
    randomness: Randomness

    def batches(self, first_step, end):
        return ([*self.rows] for _ in range(first_step, end))


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
    from dpbnn.data.records import _ReadingAlone

    reading = _ReadingAlone(as_records(TensorDataset(X, Y), None, torch.float32), Randomness.from_seed(0))
    assert str(reading.randomness.key) not in repr(reading)
    step, rows = 3, [1, 4]
    sent = pickle.loads(pickle.dumps(reading))  # as to a worker that is spawned
    assert sent.randomness == reading.randomness
    assert torch.equal(sent.read((step, []))[0], X[:0])
    assert torch.equal(super(_ReadingAlone, sent).items(step, rows)[1][0], X[4])


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


def holders():
    rng = np.random.default_rng(0)
    return {
        "attribute": rng,
        "list": [[rng]],
        "bound method": rng.random,
        "closure": lambda: rng.random(),
        "global": by_a_global,
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
    assert not as_records(Erasing(hold), None, torch.float32).draws_by_itself


def test_a_dataset_that_reads_all_records_into_one_buffer_is_refused():
    class Reused(Pairs):
        buffer = torch.zeros(3)

        def __getitem__(self, index):
            return self.buffer.copy_(X[index]), Y[index]

    with pytest.raises(DpbnnError, match="one memory for two; return copies"):
        as_records(Reused(), None, torch.float32)
