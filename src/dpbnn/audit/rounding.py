"""Whether a sum over many records is moved by more than the clip norm, because one record more rounds the others.

A network of one weight, whose gradients all point the same way, so that sums get as large as they can. In float32 a sum
over 2^18 records of norm C is off by up to C / 32, which is more than the room that clipping leaves.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dpbnn.audit.checks import Check
from dpbnn.likelihoods import HomoscedasticGaussian
from dpbnn.methods import SGD
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.training import prepared

__all__ = ["RoundingAudit", "audit_rounding"]

CLIP_NORM = 0.7
"""No power of two: sums would be rounded to multiples of it."""
IN_A_ROW, PLACES = 10, 4
ROUNDING = 1e-6


@dataclass(frozen=True)
class RoundingAudit:
    """What was seen of sums over so many records.

    Args:
        records: in a batch.
        furthest: how far one more moves the sum, in clip norms.
        checks: what must be so.
    """

    records: int
    furthest: float
    checks: tuple[Check, ...]


def audit_rounding(records: int = 2**18) -> RoundingAudit:
    """Add up records that are hard to add up.

    Guarantees:
        on code that is right the check does not fail
    """
    level: Any = {"clip_norm": CLIP_NORM, "noise_multiplier": 1.0, "delta": 1e-5}
    model = nn.Linear(1, 1, bias=False, device="cuda" if torch.cuda.is_available() else None)
    nn.init.zeros_(model.weight)
    plan = PrivacyPlan(dataset_size=records, batch_size=records, steps=1, **level)
    likelihood = HomoscedasticGaussian(1.0)
    run = prepared(model, torch.zeros(0, 1), torch.zeros(0, 1), SGD(1.0), plan, likelihood, seed=0)
    state, device = run.begin().state, next(model.parameters()).device

    def total(gradients: Tensor) -> float:
        targets = -gradients[:, None].to(device)
        (moved,) = run.work.clipped(state, 0, torch.ones_like(targets), targets).gradients.values()
        return float(moved.double())

    totals = ([total(gradients) for gradients in neighbours] for neighbours in _hard(records))
    furthest = max(abs(after - before) for row in totals for before, after in pairwise(row)) / CLIP_NORM
    name = "rounding carries no record beyond the clip norm"
    return RoundingAudit(records, furthest, (Check(name, float(furthest <= 1 + ROUNDING)),))


def _hard(records: int) -> Iterator[list[Tensor]]:
    """Gradients of data sets, of which any two that follow one another differ by one record."""
    yield [torch.ones(records + more) for more in range(IN_A_ROW)]
    large = 2 ** (int(math.log2(records)) - 1)
    tiny = torch.full((records - large,), -0.3 * large * 2.0**-23)
    yield [torch.cat([torch.ones(large + more), tiny]) for more in (0, 1)]  # over a power of two, or not
    others, one = 0.3 * CLIP_NORM + 0.7 * CLIP_NORM * torch.rand(records), torch.ones(1)
    for place in range(0, records, records // PLACES):
        yield [others, torch.cat([others[:place], one, others[place:]])]
