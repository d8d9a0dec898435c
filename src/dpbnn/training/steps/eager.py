"""Steps taken one by one: works for every model on every device."""

from collections.abc import Iterator
from typing import Any

from dpbnn.data.read_ahead import read_ahead
from dpbnn.data.records import Batch
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.training.steps.work import Work
from dpbnn.types import NoisySum

__all__ = ["EagerSteps"]


class EagerSteps:
    """Each step's operations are issued as it comes; the ledger, if there is one, is told of every sum."""

    how = "one by one"

    def __init__(self, work: Work, first_step: int, ledger: Ledger | None = None) -> None:
        self._work, self._ledger = work, ledger
        self._batches = self._read(first_step)

    def release(self, state: Any, step: int) -> NoisySum:
        """One release: the only lines that see records and what they become."""
        work = self._work
        x, y = next(self._batches)
        work.method.begin_step(state, step)
        masks, observe = work.randomness.masks(step), work.diagnostics.observer(step)
        clipped = work.clipped(state, step, x, y, masks=masks, observe=observe)
        if self._ledger is not None:
            self._ledger.made()
        return add_noise(clipped, work.plan.noise_at(step), work.randomness, step)

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
        return read_ahead(batches, work.device, work.read_when_asked)
