"""How good the model is along the way, on data that the user declares public."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dpbnn.clipping import CheckedModel
from dpbnn.clipping.objective import Objective
from dpbnn.data.records import InMemoryRecords, as_records
from dpbnn.errors import DpbnnError
from dpbnn.posterior import Posterior
from dpbnn.prediction import ClassPrediction
from dpbnn.prediction.memory import Measurements
from dpbnn.prediction.predict import predict

__all__ = ["PublicMeasure"]

TIMES = 20
DRAWS = 10


@dataclass
class PublicMeasure:
    """Accuracy, or root mean squared error, some twenty times over the run."""

    objective: Objective
    x: Tensor
    y: Tensor
    every: int
    history: list[dict[str, float]] = field(default_factory=list)
    measurements: Measurements = field(default_factory=Measurements)

    @staticmethod
    def on(checked: CheckedModel, public_data: tuple[Any, Any], steps: int) -> "PublicMeasure":
        """Check the public data as the private data is checked."""
        if not isinstance(public_data, tuple) or len(public_data) != 2:
            raise DpbnnError(f"public_data must be a pair (X, y), got {type(public_data).__name__}.")
        weight = next(checked.objective.model.parameters())
        records = as_records(*public_data, weight.dtype)
        if not isinstance(records, InMemoryRecords):
            raise DpbnnError("public_data must be a pair of tensors or arrays, got a Dataset.")
        checked.objective.likelihood.check_values(records.y, checked.num_outputs)
        x, y = records.x.to(weight.device), records.y.cpu()  # where predictions are
        return PublicMeasure(checked.objective, x, y, max(1, steps // TIMES))

    def after(self, steps_done: int, posterior: Callable[[], Posterior]) -> str:
        """The last measure as text; a new one if it is time."""
        if steps_done % self.every == 0:
            prediction = predict(self.objective, posterior(), self.x, DRAWS, seed=0, measurements=self.measurements)
            if isinstance(prediction, ClassPrediction):
                measured = {"public_accuracy": float((prediction.labels == self.y.reshape(-1)).double().mean())}
            else:
                errors = prediction.mean - self.y.reshape(prediction.mean.shape)
                measured = {"public_rmse": float(errors.double().square().mean().sqrt())}
            self.history.append({"step": steps_done, **measured})
        if not self.history:
            return ""
        *_, (name, value) = self.history[-1].items()
        return f"{name.replace('_', ' ')} {value:.3f}"
