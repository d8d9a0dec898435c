"""Strict, versioned JSON for what outlives a run: no NaN, no unknown and no missing fields."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from dpbnn._validate import refuse
from dpbnn.errors import DpbnnError

__all__ = ["dump", "load", "or_null", "unless_null"]


def dump(version: int, fields: Mapping[str, Any]) -> str:
    """The fields as JSON text that starts with the version."""
    return json.dumps({"version": version, **fields}, allow_nan=False)


def load(what: str, text: str, versions: Mapping[int, Collection[str]]) -> dict[str, Any]:
    """The fields of `what` from JSON text; they must be exactly those that `versions` lists for its version."""
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (TypeError, ValueError) as error:
        raise DpbnnError(f"{what} must be JSON text, got {_shortened(text)!r} ({error}).") from error
    if not isinstance(fields, dict):
        refuse(what, "a JSON object", fields)
    version = fields.pop("version", None)
    if type(version) is not int or version not in versions:
        refuse(f"version of {what}", f"{' or '.join(map(str, versions))}, as this release of dpbnn reads,", version)
    names = versions[version]
    for wrong, kind in ((set(names) - set(fields), "missing"), (set(fields) - set(names), "unknown")):
        if wrong:
            raise DpbnnError(f"{what} must have the fields {sorted(names)}, got {kind} {sorted(wrong)}.")
    return fields


def or_null(value: float) -> float | None:
    """JSON has no infinity and no NaN: null stands for them."""
    return value if math.isfinite(value) else None


def unless_null(value: float | None, meant: float) -> float:
    """The number, or what null stands for."""
    return meant if value is None else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _shortened(text: object) -> object:
    return text[:60] + "..." if isinstance(text, str) and len(text) > 60 else text
