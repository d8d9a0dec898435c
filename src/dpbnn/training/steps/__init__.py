"""How the steps of a run are carried out: one by one (`eager`), or recorded once and replayed (`recorded`).

Both take the same steps: Poisson batch -> clipped sum -> **noise** -> update -> keep.
"""

from dpbnn.training.steps.captured import RecordedSteps, why_not_recorded
from dpbnn.training.steps.eager import EagerSteps
from dpbnn.training.steps.work import Steps, Work

__all__ = ["EagerSteps", "RecordedSteps", "Steps", "Work", "why_not_recorded"]
