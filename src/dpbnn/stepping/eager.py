"""Steps taken one by one: works for every model on every device."""

from collections.abc import Iterator
from typing import Any

import torch

from dpbnn.own_draws import derived_seed
from dpbnn.privacy.mechanism import add_noise
from dpbnn.records import Batch
from dpbnn.stepping.read_ahead import read_ahead
from dpbnn.stepping.work import Work
from dpbnn.types import NoisySum

__all__ = ["EagerSteps", "forget_masks"]


class EagerSteps:
    """Each step's operations are issued as it comes."""

    how = "one by one"

    def __init__(self, work: Work, first_step: int) -> None:
        self._work = work
        self._batches = self._read(first_step)

    def release(self, state: Any, step: int) -> NoisySum:
        """One release: the only lines that see records and what they become."""
        work = self._work
        work.randomness.seed_model(step, work.device)
        x, y = next(self._batches)
        work.method.begin_step(state, step)
        clipped = work.clipped(state, step, x, y, observe=work.diagnostics.observer(step))
        noisy = add_noise(clipped, work.plan.noise_at(step), work.randomness, step)
        forget_masks(derived_seed(work.seed, step), work.device)
        return noisy

    def take(self, state: Any, noisy: NoisySum, step: int) -> Any:
        """Update, keep."""
        method = self._work.method
        state = method.keep(method.update(state, noisy, step), step)
        method.end_step(state, step)
        return state

    def release_and_take(self, state: Any, step: int) -> Any:
        """Both at once."""
        return self.take(state, self.release(state, step), step)

    def _read(self, first_step: int) -> Iterator[Batch]:
        work = self._work
        batches = work.records.batches(work.sampler, first_step, work.plan.steps, work.execution.dataset_workers)
        return read_ahead(batches, work.device, work.draws_when_read)


def forget_masks(seed: int, device: torch.device) -> None:
    """A method may draw from torch's generator, but not in the state that the masks left, which tells their number."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
