"""What released networks say about new records."""

from dpbnn.prediction.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction"]
