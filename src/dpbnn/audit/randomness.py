"""Whether secret random numbers are drawn once: not again in a later step, for another purpose or in another run.

streams    each purpose, step and part of a step has a generator of its own: at steps near powers of two, a power of
           two apart, and at random
asked for  sampling, masks, noise and the reading of records ask for different ones
draws      the same of what comes out: noise, masks, batches, and what reading a record draws
seeds      torch's generators on a CPU are in states that no seed of 32 bits leads to
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpbnn.audit.checks import Check
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.privacy.noise.randomness import MERSENNE_OFFSET, MERSENNE_WORDS, Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

__all__ = ["RandomnessAudit", "audit_randomness"]

OF_A_PROCESS = ("process", "NumPy", "Python")
READERS = [f"{purpose}, {kind}" for purpose in ("reading", "workers") for kind in OF_A_PROCESS]
PURPOSES, PARTS = ("sampling", "noise", "model", "reading", "workers", *READERS), (0, 1, 2)
LARGEST_POWER, AT_RANDOM = 40, 200
RUNS = 2
MEMBERS = 200
"""Records of which each is in a batch or not: no two batches are the same by chance."""
WATCHED_STEPS = 200


@dataclass(frozen=True)
class RandomnessAudit:
    """What was seen of the numbers of some runs.

    Args:
        streams: that were compared.
        largest_step: at which one was looked at.
        checks: what must be so.
    """

    streams: int
    largest_step: int
    checks: tuple[Check, ...]


def audit_randomness() -> RandomnessAudit:
    """Draw for steps near and far, and compare all with all."""
    steps = _steps()
    runs = [Randomness.from_operating_system() for _ in range(RUNS)]
    streams = [
        run.generator(purpose, step, part).integers(0, 2**63, 2).tobytes()
        for run in runs
        for purpose in PURPOSES
        for part in PARTS
        for step in steps
    ]
    checks = [
        Check("no two steps, purposes, parts or runs share a stream", float(_differ(streams))),
        Check("sampling, masks, noise and reading ask for different streams", float(_asks_apart())),
        _drawn("no two steps or runs have the same noise", runs, steps, _noise_on(torch.device("cpu"))),
        _drawn("no two steps or runs have the same masks", runs, steps, _mask),
        _drawn("no two steps or runs have the same batch", runs, steps, _batch),
        _drawn("no two steps or runs draw the same to read a record", runs, steps, partial(_to_read, row=0)),
        Check("no two records draw the same to be read", float(_differ([_to_read(runs[0], 0, row) for row in steps]))),
        Check("masks and reading draw from more than 32 bits", float(not any(map(_has_32_bits, _all_of(runs[0]))))),
    ]
    if torch.cuda.is_available():
        name = "no two steps or runs have the same noise on a GPU"
        checks.append(_drawn(name, runs, steps, _noise_on(torch.device("cuda"))))
    return RandomnessAudit(len(streams), max(steps), tuple(checks))


def _steps() -> list[int]:
    """Near powers of two, powers of two after one and the same step, and some at random."""
    powers = [2**power for power in range(LARGEST_POWER + 1)]
    near = {step + off for step in powers for off in (-1, 0, 1)}
    start = int(np.random.default_rng().integers(1000))
    later = {start} | {start + power for power in powers}
    return sorted(near | later | set(np.random.default_rng().integers(2**LARGEST_POWER, size=AT_RANDOM).tolist()))


def _differ(draws: list[bytes]) -> bool:
    return len(set(draws)) == len(draws)


def _drawn(name: str, runs: list[Randomness], steps: list[int], draw: Callable[[Randomness, int], bytes]) -> Check:
    return Check(name, float(_differ([draw(run, step) for run in runs for step in steps])))


def _noise_on(device: torch.device) -> Callable[[Randomness, int], bytes]:
    def draw(randomness: Randomness, step: int) -> bytes:
        noise = torch.zeros(4, dtype=torch.float64, device=device)
        randomness.add_normals([noise], 1.0, step)
        return noise.cpu().numpy().tobytes()

    return draw


def _mask(randomness: Randomness, step: int) -> bytes:
    with drawing_from(randomness.masks(step)):
        return bytes(torch.rand(4, dtype=torch.float64).numpy().tobytes())


def _to_read(randomness: Randomness, step: int, row: int) -> bytes:
    with drawing_from(randomness.reading(step, row)):
        return bytes(torch.rand(4, dtype=torch.float64).numpy().tobytes())


def _all_of(randomness: Randomness) -> Iterator[Generators]:
    for step in range(WATCHED_STEPS):
        yield randomness.masks(step)
        yield randomness.reading(step, step)


def _has_32_bits(generators: Generators) -> bool:
    """Whether the state is that of a seed, which is its first word on a CPU."""
    state = generators.on(torch.device("cpu")).get_state().numpy()
    words = slice(MERSENNE_OFFSET, MERSENNE_OFFSET + 8 * MERSENNE_WORDS)
    seed = int(state[words].view(np.uint64)[0])
    return bool((state[words] == torch.Generator().manual_seed(seed).get_state().numpy()[words]).all())


def _batch(randomness: Randomness, step: int) -> bytes:
    return PoissonSampler(MEMBERS, 0.5, randomness).batch(step).tobytes()


@dataclass(frozen=True)
class _ListedRandomness(Randomness):
    """Notes which streams are asked for."""

    asked: set[tuple[str, int, int]] = field(default_factory=set)

    def _derive(self, purpose: str, step: int, part: int) -> bytes:
        self.asked.add((purpose, step, part))
        return super()._derive(purpose, step, part)


def _asks_apart() -> bool:
    """Whether no stream is asked for by two of those who use them in a run."""
    key = Randomness.from_operating_system().key
    seen: set[tuple[str, int, int]] = set()
    for use in _uses():
        watched = _ListedRandomness(key)
        for step in range(WATCHED_STEPS):
            use(watched, step)
        if seen & watched.asked:
            return False
        seen |= watched.asked
    return True


def _uses() -> Iterator[Callable[[Randomness, int], bytes | Tensor]]:
    yield _noise_on(torch.device("cpu"))
    yield _batch
    yield _mask
    yield partial(_to_read, row=0)
