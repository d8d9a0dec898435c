"""`dpbnn bench`, which is gone: it says where the benchmarks are, for one minor version."""

import typer

from dpbnn.errors import DpbnnError

__all__ = ["bench"]


def bench(context: typer.Context) -> None:
    """Gone: the benchmarks run from a clone of the repository alone."""
    raise DpbnnError("dpbnn bench has moved: run make bench, or python benchmarks NAME, in a clone of the repository.")
