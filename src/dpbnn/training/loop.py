"""`train`: the only training loop of the library, for one run and for several that share a device."""

from collections.abc import Sequence
from functools import partial

from dpbnn._warn import warn
from dpbnn.privacy.ledger import fingerprint
from dpbnn.training.checkpoint import Checkpoint
from dpbnn.training.position import Position
from dpbnn.training.prepare import on_current_device
from dpbnn.training.progress import show_progress
from dpbnn.training.public_measure import PublicMeasure
from dpbnn.training.steps import CapturedSteps, EagerSteps, Steps, why_not_captured

__all__ = ["steps_of", "train"]


def train(
    positions: Sequence[Position],
    folder: Checkpoint | None = None,
    measure: PublicMeasure | None = None,
    progress: bool = False,
) -> None:
    """Take the steps that are left, each charged before it is used; nothing is released yet.

    Args:
        positions: runs with equal numbers of steps on one device, and all of them at the same step; where there is a
            checkpoint or a measure, a single one.
        folder: where every release is entered before it is used.
        measure: measures on public data along the way.
        progress: whether to show a bar.
    """
    first = positions[0]
    work, ledger = first.work, first.ledger
    with on_current_device(work.device), show_progress(work.plan, first.step, progress, len(positions)) as display:
        steps = steps_of(positions)
        for step in range(first.step, work.plan.steps):
            if folder is None:
                for position in positions:
                    position.ledger.enter(step, step)  # no step is repeated here: any number serves as its mark
                steps.release_and_take(step)
                for position in positions:
                    position.ledger.use(step, step)
            else:
                noisy = steps.release(step)
                mark = fingerprint(*noisy)
                if ledger.has_charged(step) and not ledger.holds(step, mark):
                    # Not what was released before the interruption: drop it, and draw everything afresh from here on.
                    ledger.drop()
                    first.draw_afresh(folder)
                    steps = steps_of(positions)
                    noisy = steps.release(step)
                    mark = fingerprint(*noisy)
                if not ledger.holds(step, mark):
                    folder.charge(ledger, step, mark)
                if ledger.holds(step, mark):
                    ledger.use(step, mark)
                    steps.take(noisy, step)
                else:
                    ledger.drop()
            for position, state in zip(positions, steps.states, strict=True):
                position.state, position.step, position.how = state, step + 1, steps.how
            if folder is not None and folder.is_due(work.execution.checkpoint_seconds):
                first.save(folder)
            learned = partial(work.method.to_posterior, first.state)
            display(step + 1, "" if measure is None else measure.after(step + 1, learned))


def steps_of(positions: Sequence[Position]) -> Steps:
    """CUDA graphs on a CUDA device, where models and methods can be captured; eager steps elsewhere."""
    works, states = [position.work for position in positions], [position.state for position in positions]
    ledgers, step = [position.ledger for position in positions], positions[0].step
    reasons = [why_not_captured(work, state, step) for work, state in zip(works, states, strict=True)]
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        return CapturedSteps(works, states, step, ledgers=ledgers)
    if reason:
        warn(f"Steps are taken one by one, which is slower: {reason}.")
    return EagerSteps(works, states, step, ledgers)
