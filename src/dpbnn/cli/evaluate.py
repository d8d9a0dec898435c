"""`dpbnn evaluate`: how good a model is on rows whose target is known."""

import sys
from typing import Annotated

import typer

from dpbnn.cli.options import AsJson, Draws, ModelFolder, Seed, show

__all__ = ["evaluate"]


def evaluate(
    model: ModelFolder,
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with rows whose target is known.")],
    public: Annotated[
        bool | None, typer.Option("--public/--private", help="Whether the test data is public; if not given, it asks.")
    ] = None,
    draws: Draws = 100,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model on rows whose target is known.

    Figures from private rows are outside the guarantee.
    """
    from dpbnn.tables.model import load_table_model
    from dpbnn.tables.reporting import figures_of

    loaded = load_table_model(model)
    rows = loaded.read(data, with_target=True)
    if public is None:
        public = sys.stdin.isatty() and typer.confirm(f"Is {data} public?", default=False)
    figures = figures_of(loaded, loaded.predict(rows, draws, seed), loaded.encoding.targets(rows), public)
    guarantee = figures["guarantee"]
    printed = {name: value for name, value in figures.items() if name not in ("guarantee", "caution")}
    printed["epsilon, delta of the model"] = f"{guarantee['epsilon']:g}, {guarantee['delta']:g} for {guarantee['unit']}"
    lines = [f"{name.replace('_', ' '):32}{value}" for name, value in printed.items()]
    caution = [f"\n{figures['caution']}"] if "caution" in figures else []
    show(as_json, figures, "\n".join(lines + caution))
