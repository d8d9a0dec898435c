"""Secret draws: independent between steps and purposes, repeatable, and normal out into the tails."""

import random
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from dpbnn.data.process_generators import generators_of_the_process
from dpbnn.device.generators import default_generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.privacy.noise.randomness import CHUNK, Randomness

CPU = torch.device("cpu")


def normals(randomness, step, count=1000, dtype=torch.float32):
    values = torch.zeros(count, dtype=dtype)
    randomness.add_normals([values], 1.0, step)
    return values


def test_every_run_has_a_key_of_its_own():
    assert len({Randomness.from_operating_system().key for _ in range(100)}) == 100
    randomness = Randomness.from_operating_system()
    assert repr(randomness.key) not in repr(randomness)


def test_every_process_has_keys_of_its_own():
    code = "from dpbnn.privacy.noise.randomness import Randomness; print(Randomness.from_operating_system().key.hex())"
    keys = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(keys) == 2


@pytest.mark.guarantees("Different steps, and different purposes within a step, draw independently.")
def test_different_steps_and_different_purposes_within_a_step_draw_independently():
    randomness = Randomness.from_seed(1)
    draws = {
        tuple(randomness.generator(purpose, step, part).integers(0, 2**63, 4))
        for purpose in ("noise", "sampling", "model")
        for step in range(50)
        for part in range(3)
    }
    assert len(draws) == 3 * 50 * 3
    first, second = normals(randomness, 0, 200_000), normals(randomness, 1, 200_000)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.012  # 5 standard errors


@pytest.mark.guarantees("The same key and step draw the same again.")
def test_the_same_key_and_step_draw_the_same_again():
    first, second = Randomness.from_seed(7), Randomness(Randomness.from_seed(7).key)
    assert torch.equal(normals(first, 3), normals(second, 3))
    assert not torch.equal(normals(first, 3), normals(Randomness.from_seed(8), 3))


def test_the_draws_do_not_depend_on_the_number_of_threads():
    count = 3 * CHUNK + 17  # the last chunk has an odd length
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = normals(Randomness.from_seed(2), 5, count)
        torch.set_num_threads(2)
        assert torch.equal(normals(Randomness.from_seed(2), 5, count), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.guarantees("Normals are standard normals to float32 or better, tails included.")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_standard_normals(dtype):
    values = normals(Randomness.from_seed(3), 0, 2_000_000, dtype)
    assert values.dtype == dtype
    assert stats.kstest(values[:200_000].numpy(), "norm").pvalue > 1e-6
    assert abs(float(values.double().var()) - 1) < 5 * (2 / 2e6) ** 0.5


@pytest.mark.guarantees("Normals are standard normals to float32 or better, tails included.")
def test_normals_reach_into_the_tails_where_float32_of_torch_ends():
    """torch's own float32 normals end at 5.77; beyond 4.5 and 5 the counts must be those of a normal."""
    randomness = Randomness.from_seed(4)
    beyond = {4.5: 0, 5.0: 0}
    steps, count = 12, 2_500_000
    for step in range(steps):
        sizes = normals(randomness, step, count).abs()
        for limit in beyond:
            beyond[limit] += int((sizes > limit).sum())
    for limit, seen in beyond.items():
        expected = steps * count * 2 * stats.norm.sf(limit)
        assert abs(seen - expected) < 5 * expected**0.5, (limit, seen, expected)


def test_the_model_is_seeded_with_a_whole_state_not_with_32_bits():
    """The words that are set are the ones that the twister uses: NumPy's twister with the same words agrees."""
    randomness = Randomness.from_seed(5)
    masks = randomness.masks(9).on(CPU)
    drawn = torch.empty(2000, dtype=torch.int64).random_(0, 2**32, generator=masks).numpy()
    words = randomness.generator("model", 9).integers(0, 2**32, 624, dtype=np.uint64).astype(np.uint32)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    raw = twister.random_raw(8000)
    assert np.isin(drawn[:50], raw).all()


def test_masks_do_not_depend_on_what_was_drawn_or_seeded_before():
    randomness, drawn = Randomness.from_seed(5), []
    for step, seed in ((0, 1), (0, 2), (1, 2)):
        torch.manual_seed(seed)
        masks = randomness.masks(step)
        with drawing_from(masks):
            drawn.append((torch.rand(100), torch.randn(101)))
        masks.reseed(partial(randomness.seed_masks, step))
        with drawing_from(masks):
            drawn.append((torch.rand(100), torch.randn(101)))
    first, *again, other, _ = drawn
    assert all(torch.equal(a, b) for own in again for a, b in zip(first, own, strict=True))
    assert not torch.equal(first[0], other[0])


def states_of_the_process():
    return default_generators(CPU), generators_of_the_process()


def test_reading_and_a_process_are_seeded_anew_for_each_key_step_and_row():
    """Also where 63-bit seeds agree; and the same again after anything was drawn."""
    states = []
    before = states_of_the_process(), torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Randomness, "torch_seed", lambda *_: 5)
            for seed, step, row in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 23, 0), (1, 2, 30), (1, 2, 3)]:
                randomness = Randomness.from_seed(seed)
                randomness.seed_process("reading", step, row)
                own = randomness.reading(step, row).on(CPU).get_state().numpy().tobytes()
                torch_own, (of_python, of_numpy, *_) = states_of_the_process()
                states.append((own, torch_own, of_python, of_numpy))
                torch.rand(3), np.random.normal(), random.gauss()  # noqa: NPY002
    finally:
        torch.set_rng_state(before[1])
        np.random.set_state(before[2])  # noqa: NPY002
        random.setstate(before[3])
    assert states_of_the_process() == before[0]
    for kind in zip(*states, strict=True):
        assert len(set(kind)) == len(states) - 1
        assert kind[0] == kind[-1]


def test_a_seed_must_be_a_whole_number():
    with pytest.raises(DpbnnError, match="unsafe_seed must be a whole number, got 'a'"):
        Randomness.from_seed("a")
