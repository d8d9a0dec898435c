"""What `dpbnn fit` leaves: a release, how rows become what it takes, and how it was made."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbnn import lint
from dpbnn.errors import DpbnnError
from dpbnn.prediction import Prediction, RealPrediction
from dpbnn.release.release import Release, load
from dpbnn.tables.encoding import Encoding
from dpbnn.tables.reading import Table, is_parquet, number_of_columns, read_table
from dpbnn.tables.schema import Number, parse_schema
from dpbnn.tables.settings import Chosen
from dpbnn.tables.training import EXPECTED, in_units

__all__ = ["TableModel", "load_table_model", "log_of", "settings_of", "shown"]

ROUGH_UNCERTAINTY = (
    "Take mutual_information and epistemic_std for a rough guide: draws differ by the noise of privacy more than by "
    "what the rows leave open. Predictions are averages over them, and not affected (docs/tables.md)."
)
OF_ALL_CHAINS = ("temperature", "short-chain")
"""Findings that come with all settings for private tables (docs/tables.md); they stand on the card alone."""


@dataclass(frozen=True)
class TableModel:
    """A release, and how rows become what it takes; `bought` names the columns whose ranges were bought."""

    release: Release
    encoding: Encoding
    bought: tuple[str, ...] = ()

    def predict(self, table: Table, num_draws: int = 100, seed: int | None = None) -> Prediction:
        """A prediction for every row, in the target's unit."""
        x = self.encoding.encoded(table, with_target=False).x
        prediction = self.release.predict(x, num_draws=num_draws, seed=seed)
        return in_units(prediction, *self._range) if isinstance(prediction, RealPrediction) else prediction

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of the model should know, from lint and from training."""
        settings = self.release.settings
        findings = [noted for noted in lint.noted(settings.get("findings", {})) if noted.name not in OF_ALL_CHAINS]
        warned = settings.get("warnings", ())
        others = [text for text in warned if not any(re.match(beginning, text) for beginning in EXPECTED)]
        return (*map(str, findings), *others, *([ROUGH_UNCERTAINTY] if len(others) < len(warned) else []))

    @property
    def bought_bounds(self) -> dict[str, tuple[Any, Any]]:
        """The ranges that were bought, by column."""
        columns = {name: self.encoding.schema.columns[name] for name in self.bought}
        return {name: (column.low, column.high) for name, column in columns.items() if isinstance(column, Number)}

    @property
    def public_range(self) -> tuple[float, float]:
        """The range beyond which no target can lie; one that was bought sets no such limit."""
        return (-np.inf, np.inf) if self.encoding.schema.target in self.bought else self._range

    @property
    def _range(self) -> tuple[float, float]:
        target = self.encoding.schema.columns[self.encoding.schema.target]
        assert isinstance(target, Number)
        assert target.low is not None
        assert target.high is not None
        return target.low, target.high

    def read(self, path: str | Path, with_target: bool = False, with_others: bool = False) -> Table:
        """The features in a file, its target, and the columns that this model does not know.

        New rows without a header may lack the target.
        """
        schema, names = self.encoding.schema, self.encoding.schema.names
        if names is not None and not is_parquet(path) and number_of_columns(path, schema.separator) == len(names) - 1:
            names = tuple(name for name in names if name != schema.target)
        wanted = list(schema.columns if with_target else schema.features)
        return read_table(path, wanted, names, schema.separator, with_others)


def load_table_model(path: str | Path) -> TableModel:
    """The model in a folder that `fit_table` wrote."""
    file = Path(path) / "table.json"
    if not file.is_file():
        raise DpbnnError(f"{path} must be a folder that dpbnn fit wrote, got none with a table.json.")
    try:
        values = json.loads(file.read_text())
        schema = parse_schema(values["schema"], str(file))
        bought = tuple(values["bought"])
    except (ValueError, KeyError, TypeError) as error:
        raise DpbnnError(f"{file} is damaged: {error}.") from error
    return TableModel(load(path), Encoding(schema), bought)


def log_of(model: TableModel, chosen: Chosen) -> str:
    """Settings with reasons, bounds that were bought, and notes."""
    settings = [f"{name}: {shown(value)}  ({reason})" for name, value, reason in settings_of(chosen)]
    bounds = [
        f"range of {name}: {low:.6g} to {high:.6g}  (bought)" for name, (low, high) in model.bought_bounds.items()
    ]
    return "\n".join([*settings, *bounds, *(f"note: {text}" for text in model.notes)]) + "\n"


def settings_of(chosen: Chosen) -> list[tuple[str, Any, str]]:
    """Names, values and reasons."""
    plan = chosen.plan
    values: dict[str, Any] = {
        "method": chosen.method,
        "hidden": list(chosen.hidden),
        "steps": plan.steps,
        "batch_size": plan.batch_size,
        "clip_norm": plan.clip_norm,
        "learning_rate": chosen.learning_rate,
        "prior_scale": chosen.prior_scale,
    }
    if chosen.dropout:
        values["dropout"] = chosen.dropout
    values["noise_multiplier"] = plan.noise_multiplier
    if plan.pure_epsilons:
        values["epsilon_of_purchases"] = plan.max_records_per_person * sum(plan.pure_epsilons)
    reasons = {
        "method": "as asked, or by default",
        "noise_multiplier": "the least that keeps the budget",
        "epsilon_of_purchases": "of the budget, for ranges that the schema lacks and the noise level of numbers",
        **chosen.reasons,
    }
    return [(name, value, reasons[name]) for name, value in values.items()]


def shown(value: Any) -> str:
    """A setting as a person reads it."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
