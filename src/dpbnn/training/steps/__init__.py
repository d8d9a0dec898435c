"""How the steps of a run are taken: one by one (`eager`), or captured as CUDA graphs and replayed (`captured`).

Both take the same steps: Poisson batch -> clipped sum -> **noise** -> update.
"""

from dpbnn.training.steps.captured import CapturedSteps, why_not_captured
from dpbnn.training.steps.eager import EagerSteps
from dpbnn.training.steps.work import Work

Steps = EagerSteps | CapturedSteps

__all__ = ["CapturedSteps", "EagerSteps", "Steps", "Work", "why_not_captured"]
