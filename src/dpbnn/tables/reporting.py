"""What the table commands show and write: predictions as columns, figures with a caution."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from dpbnn import metrics
from dpbnn.errors import DpbnnError
from dpbnn.prediction import ClassPrediction, Prediction, RealPrediction
from dpbnn.tables.model import TableModel
from dpbnn.tables.reading import Table, is_parquet

__all__ = ["figures_of", "predicted_columns", "write_predictions"]

OUTSIDE = (
    "These figures are computed from the test data without noise: if that is private, they are outside the guarantee "
    "and must stay with it."
)


def predicted_columns(model: TableModel, prediction: Prediction, level: float) -> dict[str, np.ndarray]:
    """Columns by name, with a value for every row."""
    if isinstance(prediction, ClassPrediction):
        classes, probabilities = model.encoding.schema.classes, prediction.probabilities.double().numpy()
        columns = {
            "label": np.array(classes)[probabilities.argmax(axis=1)],
            "probability": probabilities.max(axis=1),
            "entropy": prediction.entropy.double().numpy(),
            "mutual_information": prediction.mutual_information.double().numpy(),
        }
        of_each = zip(classes, probabilities.T, strict=True)
        return columns | {f"probability_{name}": values for name, values in of_each}
    assert isinstance(prediction, RealPrediction)
    variances = prediction.aleatoric_variance, prediction.epistemic_variance
    mean, aleatoric, epistemic, *interval = (
        values.double().numpy()[:, 0] for values in (prediction.mean, *variances, *prediction.interval(level))
    )
    low, high = (np.clip(side, *model.public_range) for side in interval)
    percent = f"{100 * level:g}"
    return {
        "mean": mean,
        "std": np.sqrt(aleatoric + epistemic),
        f"low_{percent}": low,
        f"high_{percent}": high,
        "aleatoric_std": np.sqrt(aleatoric),
        "epistemic_std": np.sqrt(epistemic),
    }


def write_predictions(source: Table, added: Mapping[str, np.ndarray], target: Path, separator: str = ",") -> None:
    """All columns of the source, then the added ones; CSV or Parquet by the name of the target, whole or not at all."""
    clash = [name for name in added if name in source.columns]
    if clash:
        raise DpbnnError(f"{source.path} must not have a column {clash[0]!r} already; rename it.")
    table = arrow.table({**source.columns, **{name: arrow.array(values) for name, values in added.items()}})
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if is_parquet(target):
            parquet.write_table(table, fresh)
        else:
            csv.write_csv(table, fresh, csv.WriteOptions(delimiter=separator))
        fresh.replace(target)
    except OSError as error:
        raise DpbnnError(f"{target} cannot be written: {error}; nothing was.") from error
    finally:
        fresh.unlink(missing_ok=True)


def figures_of(model: TableModel, prediction: Prediction, y: np.ndarray, is_public: bool) -> dict[str, Any]:
    """All metrics, and what may be done with them."""
    figures = metrics.evaluate(prediction, y if isinstance(prediction, ClassPrediction) else y[:, None])
    guarantee = json.loads(model.release.guarantee.to_json())
    return {
        "rows": len(y),
        **{name: round(value, 6) if math.isfinite(value) else None for name, value in figures.items()},
        "guarantee": {name: guarantee[name] for name in ("epsilon", "delta", "unit")},
        "test_data": "public" if is_public else "private",
        **({} if is_public else {"caution": OUTSIDE}),
    }
