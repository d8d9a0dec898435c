"""The old name of `dpbnn.prediction.predict`."""

from dpbnn._deprecated import warn_renamed
from dpbnn.prediction import ClassPrediction, Prediction, RealPrediction
from dpbnn.prediction.predict import Predictor, predict

__all__ = ["ClassPrediction", "Prediction", "Predictor", "RealPrediction", "predict"]

warn_renamed("dpbnn.predict", "dpbnn.prediction.predict")
