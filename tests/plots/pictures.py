"""Every plot of something that it may be given."""

import torch

from dpbnn import metrics, plots
from dpbnn.prediction import ClassPrediction, RealPrediction


def classes(records=400, scale=3.0, num_classes=5):
    draws = (torch.randn(records, num_classes) * scale + torch.randn(10, records, num_classes)).softmax(-1)
    return ClassPrediction(draws.mean(0), torch.special.entr(draws).sum(-1).mean(0), 10)


def real(draws=20, records=50):
    means = torch.linspace(-1, 1, records)[:, None] + 0.2 * torch.randn(draws, records, 1)
    return RealPrediction(means, torch.full_like(means, 0.1))


def labels_of(prediction, temperature=1.0):
    return (prediction.probabilities.log() / temperature).softmax(1).multinomial(1).flatten()


def reliability(records=400, temperature=1.0):
    prediction = classes(records)
    return metrics.classification.reliability_curve(prediction.probabilities, labels_of(prediction, temperature))


def histogram():
    prediction = classes()
    return metrics.classification.confidence_histogram(prediction.probabilities, labels_of(prediction))


def rejection():
    prediction = classes()
    correct = prediction.labels == labels_of(prediction)
    return metrics.uncertainty.rejection_curve(prediction.entropy, correct)


def bands(axes=None, **arguments):
    return plots.regression_bands(torch.linspace(-1, 1, 50), real(), axes=axes, **arguments)


PLOTS = {
    "reliability_diagram": lambda axes: plots.reliability_diagram(reliability(), axes),
    "confidence_histogram": lambda axes: plots.confidence_histogram(histogram(), axes),
    "rejection_diagram": lambda axes: plots.rejection_diagram(rejection(), axes),
    "out_of_distribution_histogram": lambda axes: plots.out_of_distribution_histogram(
        classes(), classes(scale=0.5), axes=axes
    ),
    "regression_bands": lambda axes: bands(axes, data=(torch.rand(9, 1), torch.rand(9))),
    "coverage_diagram": lambda axes: plots.coverage_diagram(
        metrics.regression.coverage_curve(real(), torch.zeros(50)), axes
    ),
    "draw_probabilities": lambda axes: plots.draw_probabilities(torch.rand(30, 4).softmax(1), axes=axes),
    "chain_trace": lambda axes: plots.chain_trace(torch.randn(60, 9), axes=axes),
}


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def measured(figure):
    """The points of a reliability diagram."""
    return figure.axes[0].collections[1].get_offsets().data
