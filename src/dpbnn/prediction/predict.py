"""Prediction: an average over draws of the weights, for any number of records.

Records are read, converted, moved to the model's device and run in chunks, and so are draws: apart from the result,
memory grows neither with the records nor, for classes, with the draws.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpbnn import _validate
from dpbnn._warn import warn
from dpbnn.clipping.objective import Objective
from dpbnn.device.execution import PRECISIONS, computing_in
from dpbnn.device.generators import Generators, drawing_from
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Moments, Probabilities
from dpbnn.posterior import Posterior
from dpbnn.prediction import ClassPrediction, Prediction, RealPrediction
from dpbnn.prediction.ensemble import Ensemble, Inputs, Predicted, can_stack
from dpbnn.prediction.memory import Chunks, Measurements, chunks, measured
from dpbnn.prediction.prediction import checked_seed, joined, within_range
from dpbnn.seeds import derived_seed

__all__ = ["Predictor", "predict"]

CPU_LIMIT, DEVICE_SHARE = 2**28, 8
"""Bytes that a prediction may take by default, and the share of a device's memory: a device is fast on large chunks."""


def predict(
    objective: Objective, posterior: Posterior, x: Any, num_draws: int, seed: int | None, **how: Any
) -> Prediction:
    """The prediction of a `Predictor` for all of `x`; nobody else may use the model meanwhile."""
    return Predictor(lambda: nullcontext(objective), posterior, num_draws, seed, **how)(x)


@dataclass
class Predictor:
    """The average of what draws of the weights predict; results are on the CPU.

    Args:
        lend: lends the model and its likelihood to one user at a time, who switches the model's mode.
        posterior: where the weights are drawn from.
        num_draws: how many draws to average; a posterior that holds fewer gives all of them.
        seed: makes the draws repeatable; None for fresh ones.
        keep_draws: keep the probabilities of each draw too.
        memory_limit: bytes for the work, not counting inputs, posterior and result, which is done in chunks to fit.
            None for 256 MiB on a CPU and an eighth of a device's memory.
        convert: makes a tensor of some rows of the inputs.
        measurements: earlier measurements of the networks; new ones are added.
        precision: of the networks' products: "float32", "tf32" or "bfloat16" (by autocast); None leaves torch's
            settings as they are. Probabilities and averages are in float32 or wider.
    """

    lend: Callable[[], AbstractContextManager[Objective]]
    posterior: Posterior
    num_draws: int
    seed: int | None = None
    keep_draws: bool = False
    memory_limit: int | None = None
    convert: Callable[[Any], Tensor] = torch.as_tensor
    precision: str | None = None
    measurements: Measurements = field(default_factory=Measurements)

    def __post_init__(self) -> None:
        _validate.whole_number("num_draws", self.num_draws)
        if self.memory_limit is not None:
            _validate.whole_number("memory_limit", self.memory_limit)
        if self.precision is not None:
            _validate.one_of("precision", self.precision, PRECISIONS)
        checked_seed(self.seed)

    def __call__(self, x: Any) -> Prediction:
        """Predict for all records of `x`: anything with a shape and slices, records first, or a list of rows."""
        with self.lend() as objective:
            run = self._run(objective, x, None)
            return run.predict(0, run.num_records)

    def in_parts(self, x: Any, rows: int) -> Iterator[Prediction]:
        """Predict for `rows` records at a time, all from the same draws of the weights."""
        size = _validate.whole_number("rows", rows)
        with ExitStack() as stack:
            run = self._run(stack.enter_context(self.lend()), x, size)
            return run.predict_in_parts(size, stack.pop_all())

    def _run(self, objective: Objective, x: Any, rows: int | None) -> "_PredictionRun":
        x = x.to_numpy() if hasattr(x, "to_numpy") else x
        x = x if getattr(x, "shape", ()) else self.convert(x)
        ensemble = Ensemble(objective, self.posterior, self.num_draws, checked_seed(self.seed))
        return _PredictionRun(self, ensemble, x, rows)


class _PredictionRun:
    """One set of draws on one set of inputs; it predicts for at most `most` records at a time, None for all."""

    def __init__(self, predictor: Predictor, ensemble: Ensemble, x: Any, most: int | None) -> None:
        self.predictor, self.ensemble, self.x = predictor, ensemble, x
        self.num_records = x.shape[0]
        self.chunks, self.copies, self.is_random = Chunks(rows=1, draws=1, part=1), False, True
        if self.num_records > 0:
            with self._running(0):
                limit = predictor.memory_limit or _default_limit(ensemble.device)
                self._measure(min(most or self.num_records, self.num_records), limit)

    def _measure(self, most: int, limit: int) -> None:
        ensemble, record, measurements = self.ensemble, self._read(0, 1), self.predictor.measurements
        needs = measurements.of(measured, ensemble, record, lambda predicted: _Tally(keep=False).add(predicted))
        self.copies, self.is_random = needs.writes, needs.is_random
        self.chunks = chunks(ensemble, needs, record, most, limit, self.predictor.keep_draws)
        is_candidate = self.chunks.draws > 1 and not ensemble.posterior.keeps_dropout
        ensemble.stacks = is_candidate and measurements.of(can_stack, ensemble, record)
        if limit < needs.least and self.predictor.memory_limit is not None:  # probably meant in megabytes
            warn(
                f"memory_limit is in bytes: {limit} hold less than one row of one draw, which takes {needs.least}. "
                f"Prediction is then very slow; leave memory_limit out, or raise it (256 MiB are {CPU_LIMIT})."
            )

    def predict(self, start: int, end: int) -> Prediction:
        """Predict for the records from `start` up to `end`."""
        size = self.chunks.part
        return joined([self._part(first, min(first + size, end)) for first in range(start, max(end, start + 1), size)])

    def predict_in_parts(self, size: int, lent: ExitStack) -> Iterator[Prediction]:
        """Predict for `size` records at a time; at the end, return the model that was lent."""
        with lent:
            for start in range(0, self.num_records, size):
                yield self.predict(start, min(start + size, self.num_records))

    def _part(self, start: int, end: int) -> Prediction:
        """The inner loop is over records: drawing weights may cost more than running them."""
        with self._running(start):
            blocks = self._read(start, end).split(self.chunks.rows)
            pairs = [(Inputs(rows, self.copies), _Tally(self.predictor.keep_draws)) for rows in blocks]
            for group in self.ensemble.groups(self.chunks.draws):
                for inputs, tally in pairs:
                    tally.add(group(inputs))
        return joined([tally.result(self.predictor.num_draws) for _, tally in pairs])

    def _read(self, start: int, end: int) -> Tensor:
        return self.predictor.convert(self.x[start:end]).to(self.ensemble.device)

    @contextmanager
    def _running(self, start: int) -> Iterator[None]:
        """In the model's mode, with seeded generators, without gradients; inputs that do not fit get a clear error."""
        generators = Generators.seeded(derived_seed(self.ensemble.seed, start))
        try:
            with (
                torch.no_grad(),
                drawing_from(generators) if self.is_random else nullcontext(),
                self.ensemble.mode(),
                computing_in(self.predictor.precision, self.ensemble.device),
            ):
                yield
        except (DpbnnError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            kind = f"shape {list(self.x.shape)} and type {getattr(self.x, 'dtype', type(self.x).__name__)}"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DpbnnError(f"X of {kind} does not fit the model: {reason}") from error


class _Tally:
    """The predictions of the draws so far for some records.

    For classes it holds sums over the draws, of probabilities and of their terms in the entropy; for real outputs
    every draw.
    """

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.count = 0
        self.dtype = torch.float32
        self.sums: list[Tensor] = []
        self.kept: list[Predicted] = []

    def add(self, predicted: Predicted) -> None:
        """Add further draws, ``[draws, records, ...]``."""
        self.count += len(predicted[0])
        if isinstance(predicted, Probabilities):
            values = predicted.values
            self.dtype = values.dtype
            self.sums = self.sums or [torch.zeros_like(values[0], dtype=torch.float64) for _ in range(2)]
            for total, each in zip(self.sums, (values, torch.special.entr(values)), strict=True):
                total.add_(each[0] if len(each) == 1 else each.sum(dim=0, dtype=torch.float64))
        if self.keep or isinstance(predicted, Moments):
            self.kept.append(predicted)  # it stays on its device until the end: copying would wait for the device

    def result(self, requested: int) -> Prediction:
        """The average over all draws."""
        kept = [torch.cat(values).cpu() for values in zip(*self.kept, strict=True)]
        if not self.sums:
            means, variances = kept
            return RealPrediction(means, variances, requested_draws=requested)
        probabilities, terms = (total / self.count for total in self.sums)
        expected_entropy = within_range(terms.sum(dim=-1), terms.shape[-1]).to(self.dtype).cpu()
        probabilities = probabilities.to(self.dtype).contiguous().cpu()
        draws = kept[0] if kept else None
        return ClassPrediction(probabilities, expected_entropy, self.count, requested_draws=requested, draws=draws)


def _default_limit(device: torch.device) -> int:
    """A share of all memory of a device, not of what is free: the same seed must give the same masks again."""
    if device.type != "cuda":
        return CPU_LIMIT
    return int(torch.cuda.get_device_properties(device).total_memory) // DEVICE_SHARE
