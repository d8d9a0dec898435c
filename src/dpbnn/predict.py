"""The old name of `dpbnn.prediction`."""

from dpbnn._warn import warn_renamed
from dpbnn.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction"]

warn_renamed("dpbnn.predict", "dpbnn.prediction")
