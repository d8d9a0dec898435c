"""What attacks on single steps have looked at, and what they have not: as data and in words."""

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
"""Settings that may meet, and the values of each: a large batch is summed in float64, and the noise of a wide network
is drawn in several chunks."""
NEVER = (
    "your records and your network",
    "half precision",
    "checkpoints and resumed runs",
    "bounds and noise levels that are bought",
    "budgets and searches",
)


@dataclass(frozen=True)
class Coverage:
    """What was looked at.

    Args:
        looked_at: the values of each setting, over all attacks.
        pairs: how many pairs of the values in `VALUES` there are.
        pairs_not_met: those that no attack had at the same time.
        not_looked_at: what no attack had at all, in words.
    """

    looked_at: Mapping[str, tuple[str | int, ...]]
    pairs: int
    pairs_not_met: tuple[tuple[str, str], ...]
    not_looked_at: tuple[str, ...]

    def __str__(self) -> str:
        seen = self.looked_at
        one_level, one_row = seen["levels"] == (1,), seen["rows_per_person"] == (1,)
        return (
            f"Looked at: {_listed(seen['clipping'])} clipping; {_listed(seen['levels'])} "
            f"level{'s' * (not one_level)} of noise and clip norm; {_listed(seen['rows_per_person'])} "
            f"row{'s' * (not one_row)} per person; {_listed(seen['form'])} gradients; batches of "
            f"{_listed(seen['records'])} records; networks of {_range(seen['weights'])} weights. "
            f"Not looked at: {'; '.join(self.not_looked_at)}."
        )


def coverage_of(
    attacks: Sequence[MechanismAudit], further_records: int = 0, leaves_out: Sequence[str] = ()
) -> Coverage:
    """Of some attacks; `further_records` were added up elsewhere, and `leaves_out` is what a shorter audit lacks."""
    names = [*VALUES, "engine"]
    looked_at = {name: tuple(sorted({getattr(attack, name) for attack in attacks})) for name in names}
    pairs = _pairs([tuple((name, value) for value in values) for name, values in VALUES.items()])
    met = {pair for attack in attacks for pair in _pairs([((name, kind),) for name, kind in _kinds(attack).items()])}
    missed = tuple((first[1], second[1]) for first, second in pairs if (first, second) not in met)
    largest = max(further_records, *looked_at["records"])
    not_looked_at = [
        *NEVER[:1],
        f"more than {largest:,} records in a batch",
        f"more than {max(looked_at['weights']):,} weights",
        *([] if torch.cuda.is_available() else ["steps on a GPU"]),
        *NEVER[1:],
        *leaves_out,
    ]
    if missed:
        not_looked_at.append(f"{len(missed)} of {len(pairs)} pairs of these settings at the same time")
    return Coverage(looked_at, len(pairs), missed, tuple(not_looked_at))


def _kinds(attack: MechanismAudit) -> dict[str, str]:
    """Which of `VALUES` an attack had."""
    return {
        "clipping": attack.clipping,
        "levels": VALUES["levels"][attack.levels > 1],
        "rows_per_person": VALUES["rows_per_person"][attack.rows_per_person > 1],
        "form": attack.form,
        "records": VALUES["records"][attack.records > LARGEST_PART],
        "weights": VALUES["weights"][attack.weights > CHUNK],
    }


def _pairs(settings: Sequence[tuple[tuple[str, str], ...]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    return [pair for first, second in combinations(settings, 2) for pair in product(first, second)]


def _listed(values: Sequence[str | int]) -> str:
    shown = [f"{value:,}" if isinstance(value, int) else value for value in values]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _range(values: Sequence[str | int]) -> str:
    return _listed(values) if len(values) < 3 else f"{values[0]:,} to {values[-1]:,}"
