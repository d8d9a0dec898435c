"""Whether secret random numbers are drawn only once: not again in a later step, for another purpose or in another run.

streams    each purpose, step and part of a step has its own generator; the steps lie near powers of two, a power of two
           apart, and at random
purposes   sampling, masks, noise and reading use different streams
draws      noise, masks, batches, and what reading a record draws differ between steps and runs
seeds      the states of torch's generators on a CPU come from no seed of 32 bits
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dpbnn.audit.checks import Check, Checked
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.privacy.noise.randomness import MERSENNE_OFFSET, MERSENNE_WORDS, Randomness
from dpbnn.privacy.noise.sampling import PoissonSampler

__all__ = ["RandomnessAudit", "audit_randomness"]

READERS = [f"{purpose}, {kind}" for purpose in ("reading", "workers") for kind in ("process", "NumPy", "Python")]
PURPOSES, PARTS = ("sampling", "noise", "model", "reading", "workers", *READERS), (0, 1, 2)
LARGEST_POWER, AT_RANDOM = 40, 200
RUNS = 2
MEMBERS = 200
"""So many records that no two batches are equal by chance."""
WATCHED_STEPS = 200

Draw = Callable[[Randomness, int], bytes]
"""What a run draws in a step for one purpose."""


@dataclass(frozen=True)
class RandomnessAudit(Checked):
    """How the random numbers of some runs compare.

    Args:
        streams: how many were compared.
        largest_step: the last step with a stream among them.
        checks: what must hold.
    """

    streams: int
    largest_step: int
    checks: tuple[Check, ...]


def audit_randomness() -> RandomnessAudit:
    """Compare what is drawn in steps near and far, for all purposes, in several runs."""
    steps = _steps()
    runs = [Randomness.from_operating_system() for _ in range(RUNS)]
    streams = [
        run.generator(purpose, step, part).integers(0, 2**63, 2).tobytes()
        for run in runs
        for purpose in PURPOSES
        for part in PARTS
        for step in steps
    ]
    generators = [runs[0].masks(step) for step in range(WATCHED_STEPS)]
    generators += [runs[0].reading(step, step) for step in range(WATCHED_STEPS)]
    facts = {
        "no two steps, purposes, parts or runs share a stream": _differ(streams),
        "sampling, masks, noise and reading ask for different streams": _asks_apart(),
        "no two records draw the same to be read": _differ([_reading(runs[0], 0, row) for row in steps]),
        "masks and reading draw from more than 32 bits": not any(map(_has_32_bits, generators)),
    }
    draws: dict[str, Draw] = {
        "have the same noise": _noise,
        "have the same masks": _mask,
        "have the same batch": _batch,
        "draw the same to read a record": _reading,
    }
    if torch.cuda.is_available():
        draws["have the same noise on a GPU"] = partial(_noise, device="cuda")
    for words, draw in draws.items():
        facts[f"no two steps or runs {words}"] = _differ([draw(run, step) for run in runs for step in steps])
    return RandomnessAudit(len(streams), max(steps), tuple(Check(name, float(holds)) for name, holds in facts.items()))


def _steps() -> list[int]:
    """Steps near powers of two, steps that lie a power of two after a common one, and some at random."""
    generator, powers = np.random.default_rng(), [2**power for power in range(LARGEST_POWER + 1)]
    start = int(generator.integers(1000))
    near = {power + offset for power in powers for offset in (-1, 0, 1)}
    later = {start, *(start + power for power in powers)}
    return sorted(near | later | set(generator.integers(2**LARGEST_POWER, size=AT_RANDOM).tolist()))


def _differ(draws: list[bytes]) -> bool:
    return len(set(draws)) == len(draws)


def _noise(randomness: Randomness, step: int, device: str = "cpu") -> bytes:
    noise = torch.zeros(4, dtype=torch.float64, device=device)
    randomness.add_normals([noise], 1.0, step)
    return noise.cpu().numpy().tobytes()


def _batch(randomness: Randomness, step: int) -> bytes:
    return PoissonSampler(MEMBERS, 0.5, randomness).batch(step).tobytes()


def _mask(randomness: Randomness, step: int) -> bytes:
    return _uniform(randomness.masks(step))


def _reading(randomness: Randomness, step: int, row: int = 0) -> bytes:
    return _uniform(randomness.reading(step, row))


def _uniform(generators: Generators) -> bytes:
    with drawing_from(generators):
        return torch.rand(4, dtype=torch.float64).numpy().tobytes()


def _has_32_bits(generators: Generators) -> bool:
    """Whether a seed leads to this state; on a CPU it would be the state's first word."""
    state = generators.on(torch.device("cpu")).get_state().numpy()
    words = slice(MERSENNE_OFFSET, MERSENNE_OFFSET + 8 * MERSENNE_WORDS)
    seed = int(state[words].view(np.uint64)[0])
    return bool((state[words] == torch.Generator().manual_seed(seed).get_state().numpy()[words]).all())


def _asks_apart() -> bool:
    """Whether no stream is used for two purposes."""
    key = Randomness.from_operating_system().key
    streams = [_streams_of(draw, key) for draw in (_noise, _batch, _mask, _reading)]
    return len(set().union(*streams)) == sum(map(len, streams))


def _streams_of(draw: Draw, key: bytes) -> set[tuple[str, int, int]]:
    """The streams that are used to draw in the first steps."""
    streams: set[tuple[str, int, int]] = set()

    class Watched(Randomness):
        def _derive(self, purpose: str, step: int, part: int) -> bytes:
            streams.add((purpose, step, part))
            return super()._derive(purpose, step, part)

    for step in range(WATCHED_STEPS):
        draw(Watched(key), step)
    return streams
