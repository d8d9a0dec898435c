"""Predictions of released networks for new records."""

from dpbnn.prediction.prediction import ClassPrediction, Prediction, RealPrediction

__all__ = ["ClassPrediction", "Prediction", "RealPrediction"]
