"""Whether one more record moves a sum over many records by more than the clip norm, because the others round anew.

The network has one weight, and all gradients point the same way, so that sums get as large as they can. Stored in
float32, a sum over 2^18 records of norm C is rounded by up to C / 64. With one more record it may be rounded as far the
other way: together C / 32, where clipping leaves room for C / 200. The same holds for sums of parts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dpbnn.audit.checks import Check, Checked
from dpbnn.audit.probe import linear_probe
from dpbnn.clipping.summation import LARGEST_PART
from dpbnn.privacy.plan import PrivacyPlan

__all__ = ["RoundingAudit", "audit_rounding", "that_round_both_ways"]

CLIP_NORMS = (0.7, 1.0)
"""One for each of the two steps. 0.7 is no power of two: with one, sums of clipped records would be exact."""
IN_A_ROW, PLACES = 10, 4
ROUNDING = 1e-6


@dataclass(frozen=True)
class RoundingAudit(Checked):
    """How sums over a large batch are rounded.

    Args:
        records: the size of the batch.
        furthest: how far one more record moves the sum, in clip norms.
        checks: what must hold.
    """

    records: int
    furthest: float
    checks: tuple[Check, ...]


def audit_rounding(records: int = 2**18) -> RoundingAudit:
    """Sum gradients that are hard to sum."""
    level: Any = {"clip_norm": [(norm, 1) for norm in CLIP_NORMS], "noise_multiplier": 1.0, "delta": 1e-5}
    plan = PrivacyPlan(dataset_size=records, batch_size=records, steps=2, **level)
    probe = linear_probe(torch.zeros(0, 1), torch.zeros(0, 1), plan)

    def total(gradients: Tensor, step: int) -> float:
        targets = -gradients[:, None].to(probe.work.device)
        (total,) = probe.clipped_sum(step, torch.ones_like(targets), targets).gradients.values()
        return float(total.double()) / CLIP_NORMS[step]

    totals = ([total(gradients, step) for gradients in neighbours] for step, neighbours in _hard(records))
    furthest = max(abs(after - before) for row in totals for before, after in pairwise(row))
    name = "rounding carries no record beyond the clip norm"
    return RoundingAudit(records, furthest, (Check(name, float(furthest <= 1 + ROUNDING)),))


def _hard(records: int) -> Iterator[tuple[int, list[Tensor]]]:
    """A step, and the gradients of data sets of which each differs from the next by one record."""
    yield 0, [torch.ones(records + more) for more in range(IN_A_ROW)]
    large = 2 ** (int(math.log2(records)) - 1)
    tiny = torch.full((records - large,), -0.3 * large * 2.0**-23)
    yield 0, [torch.cat([torch.ones(large + more), tiny]) for more in (0, 1)]  # over a power of two, or not
    others, one = CLIP_NORMS[0] * (0.3 + 0.7 * torch.rand(records)), torch.ones(1)
    for place in range(0, records, records // PLACES):
        yield 0, [others, torch.cat([others[:place], one, others[place:]])]
    of_parts = that_round_both_ways(records).float()
    yield 1, [of_parts[1:], of_parts]


def that_round_both_ways(count: int, part: int = LARGEST_PART) -> Tensor:
    """Values in groups of `part`, all below 0.995: the float32 sum of every group rounds up.

    Without the first value each group begins one further on, and rounds down: its sum is then a little below half of
    the last bit, and was a little above.
    """
    parts, half = count // part, 2.0 ** (math.floor(math.log2(0.99 * part)) - 24)
    little = min(2.0**-20, half / 8)
    step = little * torch.arange(parts, dtype=torch.float64)
    values = torch.full((parts, part), round(0.98999 * 2**12) / 2**12, dtype=torch.float64)
    values[:, 0], values[:, 1] = round(0.99499 / little) * little - 2 * step, 0.875 + 2 * step
    values[:, 2] = 0.5
    values[:, 2] += half + little - values.sum(1) % (2 * half)
    return torch.cat([values.flatten(), torch.full((count - parts * part,), 0.5, dtype=torch.float64)])
