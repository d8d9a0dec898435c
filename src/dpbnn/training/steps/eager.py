"""Steps taken one by one, operation by operation: works for every model on every device."""

from collections.abc import Iterator, Sequence
from typing import Any

from dpbnn.clipping import clip_and_sum
from dpbnn.data.read_ahead import read_ahead
from dpbnn.data.records import Batch, DatasetRecords
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.mechanism import add_noise
from dpbnn.training.steps.work import Work
from dpbnn.types import NoisySum

__all__ = ["EagerSteps"]


class EagerSteps:
    """Issues each operation as it comes; tells the ledgers, if there are any, of every noisy sum."""

    how = "one by one"

    def __init__(
        self, runs: Sequence[Work], states: Sequence[Any], first_step: int, ledgers: Sequence[Ledger] = ()
    ) -> None:
        self.states = list(states)
        self._runs, self._ledgers = list(runs), list(ledgers)
        self._batches = [batches_of(work, first_step) for work in runs]

    def release(self, step: int) -> list[NoisySum]:
        """What this step makes public of each run: no other lines see records and what becomes of them."""
        released = []
        for index, (work, state, batches) in enumerate(zip(self._runs, self.states, self._batches, strict=True)):
            x, y = next(batches)
            work.method.begin_step(state, step)
            clipped = clip_and_sum(
                work.checked,
                work.method.weights(state, step),
                x,
                y,
                work.clipping_at(step),
                masks=work.randomness.masks(step),
                observe=work.diagnostics.observer(step),
            )
            work.add_other_processes(clipped.gradients)
            if self._ledgers:
                self._ledgers[index].made()
            released.append(add_noise(clipped, work.plan.noise_at(step), work.noise, step))
        return released

    def take(self, noisy: Sequence[NoisySum], step: int) -> None:
        """Update the states with what was released."""
        for index, (work, noisy_sum) in enumerate(zip(self._runs, noisy, strict=True)):
            self.states[index] = work.method.update(self.states[index], noisy_sum, step)
            work.method.end_step(self.states[index], step)

    def release_and_take(self, step: int) -> None:
        """Release and update, where nobody looks at what is released."""
        self.take(self.release(step), step)


def batches_of(work: Work, first_step: int) -> Iterator[Batch]:
    """The Poisson batches of a run from this step on, on its device."""
    records, workers = work.records, work.execution.dataset_workers
    batches = records.batches(work.sampler, first_step, work.plan.steps, workers)
    runs_users_code = isinstance(records, DatasetRecords) and workers == 0
    return read_ahead(batches, work.device, when_asked=runs_users_code)
