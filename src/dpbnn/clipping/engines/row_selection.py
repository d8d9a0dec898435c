"""Operations that can reorder rows by their values: sorting by length, packing by a mask.

A layer behind them sees the records in another order than the layers before, which synthetic records may not show. In
book-keeping a row belongs to a record by its place, so models with these operations are left to other engines.
"""

from collections.abc import Mapping, Sequence
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor

__all__ = ["selects_rows"]

SELECTIONS = {
    *("index_select", "masked_select", "gather", "take", "take_along_dim", "put", "index_copy", "index_add"),
    *("index_put", "index_reduce", "scatter", "scatter_add", "scatter_reduce", "masked_scatter", "sort", "topk"),
}
"""By the names of functions; in place, each has an underscore behind it."""
LAST_BY_DEFAULT = {"sort": 1, "topk": 2}
"""Functions whose dimension is the last if none is given, and its place among the arguments."""


def selects_rows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation chooses rows along the first dimension by a tensor, other than each by its own number."""
    name = getattr(func, "__name__", "")
    values = args[0] if args else kwargs.get("input")
    if not isinstance(values, Tensor):
        return False
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not index or isinstance(index[0], (int, slice, EllipsisType, NoneType)):
            return False
        return len(index) == 1 or not _is_every_row(index[0], len(values))
    name = name.removesuffix("_")
    if name not in SELECTIONS:
        return False
    if name in LAST_BY_DEFAULT:
        place = LAST_BY_DEFAULT[name]
        dimension = kwargs.get("dim", args[place] if len(args) > place else -1)
    else:
        dimension = kwargs.get("dim", next((value for value in args[1:] if isinstance(value, int)), 0))
    return dimension in (0, -values.dim())


def _is_every_row(index: Any, rows: int) -> bool:
    """Each row by its own number, as in ``x[torch.arange(len(x)), lengths]``."""
    if not isinstance(index, Tensor) or index.dtype == torch.bool:
        return False
    return torch.equal(index.flatten().cpu(), torch.arange(rows))
