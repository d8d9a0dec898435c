"""Which settings attacks on single steps had, and which they lacked: as data and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import torch

from dpbnn.audit.mechanism import MechanismAudit
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.privacy.noise.randomness import CHUNK
from dpbnn.privacy.plan import CLIPPING_STYLES

__all__ = ["VALUES", "Coverage", "coverage_of"]

VALUES: dict[str, tuple[str, ...]] = {
    "clipping": CLIPPING_STYLES,
    "levels": ("one level", "several levels"),
    "rows_per_person": ("one row", "several rows"),
    "form": ("ordinary", "joint BBP"),
    "records": ("a small batch", "a large batch"),
    "weights": ("a small network", "a wide network"),
}
"""Settings with their values. A large batch is summed in float64; noise of a wide network comes in several chunks."""
NEVER = (
    "half precision",
    "checkpoints and resumed runs",
    "bounds and noise levels that are bought",
    "budgets and searches",
)


@dataclass(frozen=True)
class Coverage:
    """The settings of some attacks.

    Args:
        looked_at: the values of each setting, over all attacks.
        pairs: how many pairs of the values in `VALUES` there are.
        pairs_not_met: the pairs that no attack had at the same time.
        not_looked_at: what no attack had at all, in words.
    """

    looked_at: Mapping[str, tuple[str | int, ...]]
    pairs: int
    pairs_not_met: tuple[tuple[str, str], ...]
    not_looked_at: tuple[str, ...]

    def __str__(self) -> str:
        seen = self.looked_at
        levels, rows = ("" if seen[name] == (1,) else "s" for name in ("levels", "rows_per_person"))
        return (
            f"Looked at: {_listed(seen['clipping'])} clipping; {_listed(seen['levels'])} level{levels} of noise and "
            f"clip norm; {_listed(seen['rows_per_person'])} row{rows} per person; {_listed(seen['form'])} gradients; "
            f"batches of {_listed(seen['records'])} records; networks of {_range(seen['weights'])} weights. "
            f"Not looked at: {'; '.join(self.not_looked_at)}."
        )


def coverage_of(
    attacks: Sequence[MechanismAudit], further_records: int = 0, leaves_out: Sequence[str] = ()
) -> Coverage:
    """The settings of attacks; `further_records` were summed elsewhere, `leaves_out` is what a quick audit lacks."""
    looked_at = {name: tuple(sorted({getattr(attack, name) for attack in attacks})) for name in [*VALUES, "engine"]}
    pairs = [pair for settings in combinations(VALUES.values(), 2) for pair in product(*settings)]
    met = {pair for attack in attacks for pair in combinations(_values(attack), 2)}
    missed = tuple(pair for pair in pairs if pair not in met)
    not_looked_at = [
        "your records and your network",
        f"more than {max(further_records, *looked_at['records']):,} records in a batch",
        f"more than {max(looked_at['weights']):,} weights",
        *([] if torch.cuda.is_available() else ["steps on a GPU"]),
        *NEVER,
        *leaves_out,
        *([f"{len(missed)} of {len(pairs)} pairs of these settings at the same time"] if missed else []),
    ]
    return Coverage(looked_at, len(pairs), missed, tuple(not_looked_at))


def _values(attack: MechanismAudit) -> list[str]:
    """The attack's value of each of `VALUES`."""
    is_second = {
        "clipping": attack.clipping == CLIPPING_STYLES[1],
        "levels": attack.levels > 1,
        "rows_per_person": attack.rows_per_person > 1,
        "form": attack.form == "joint BBP",
        "records": attack.records > LARGEST_PART,
        "weights": attack.weights > CHUNK,
    }
    return [values[is_second[name]] for name, values in VALUES.items()]


def _listed(values: Sequence[str | int]) -> str:
    shown = [f"{value:,}" if isinstance(value, int) else value for value in values]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _range(values: Sequence[str | int]) -> str:
    return _listed(values) if len(values) < 3 else f"{values[0]:,} to {values[-1]:,}"
