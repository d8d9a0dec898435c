"""Bugs that have happened, or could: small patches to the real code, each with what must notice it.

A detector says whether it finds anything wrong. On the real code none does; with a bug planted, its own does. Each file
has the bugs of one part of the library, and stands alone.
"""

from tests.audit.planted import (
    accounting,
    budgets,
    checkpoints,
    clipping,
    guarantees,
    meetings,
    noise,
    outside,
    purchases,
    randomness,
    sampling,
    searches,
    settings,
)

BUGS = [
    bug
    for part in (
        *(noise, clipping, settings, sampling, randomness, outside, checkpoints),
        *(accounting, guarantees, budgets, purchases, searches, meetings),
    )
    for bug in part.BUGS
]
