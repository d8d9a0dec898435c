"""`dpbnn predict`: a table's rows with predictions and their uncertainty."""

from typing import Annotated

import typer

from dpbnn.cli.options import AsJson, Draws, ModelFolder, Seed, refuse, show, unused

__all__ = ["predict"]


def predict(
    model: ModelFolder,
    data: Annotated[str, typer.Argument(help="A CSV or Parquet file with new rows.")],
    out: Annotated[str, typer.Option(help="The file to write; .csv or .parquet.")] = "predictions.csv",
    draws: Draws = 100,
    level: Annotated[float, typer.Option(help="Probability that the interval of a number covers it.")] = 0.95,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Add predictions and their uncertainty to a table.

    Columns for classes: label, probability, entropy and mutual information. For numbers: mean, deviation and interval.
    """
    from dpbnn.tables.model import load_table_model
    from dpbnn.tables.reading import is_parquet
    from dpbnn.tables.reporting import predicted_columns, write_predictions

    loaded = load_table_model(model)
    rows = loaded.read(data, with_others=True)
    target = unused(out)
    if target.suffix.lower() != ".csv" and not is_parquet(out):
        refuse("--out", "a name that ends in .csv or .parquet", out)
    if not 0 < level < 1:
        refuse("--level", "> 0 and < 1", level)
    added = predicted_columns(loaded, loaded.predict(rows, draws, seed), level)
    write_predictions(rows, added, target, loaded.encoding.schema.separator)
    done = f"{out} has {rows.rows} rows with {', '.join(added)}."
    show(as_json, {"out": out, "rows": rows.rows, "added": list(added)}, done)
