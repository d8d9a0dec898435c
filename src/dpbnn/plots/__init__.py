"""Pictures of predictions, their calibration and their uncertainty, in one style.

Each function takes a prediction or a result of `dpbnn.metrics`, draws into `axes` or into a new figure of 100 mm width,
and returns the figure:

    >>> import dpbnn.metrics, dpbnn.plots
    >>> curve = dpbnn.metrics.classification.reliability_curve([[0.8, 0.2], [0.3, 0.7]], [0, 0])
    >>> dpbnn.plots.reliability_diagram(curve).savefig("reliability.png")  # doctest: +SKIP

Figures are built without `pyplot`: nothing is shown or kept open, and no display is needed. Pictures of private data
carry no noise and are outside the guarantee, like figures measured on it.
"""

from dpbnn.plots.chains import chain_trace
from dpbnn.plots.classes import (
    confidence_histogram,
    draw_probabilities,
    out_of_distribution_histogram,
    rejection_diagram,
    reliability_diagram,
)
from dpbnn.plots.real_outputs import coverage_diagram, regression_bands

__all__ = [
    "chain_trace",
    "confidence_histogram",
    "coverage_diagram",
    "draw_probabilities",
    "out_of_distribution_histogram",
    "regression_bands",
    "rejection_diagram",
    "reliability_diagram",
]
