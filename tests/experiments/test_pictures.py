"""Pictures of results: marks stand where the figures are."""

import pytest

from dpbnn.experiments.pictures import compared, lines
from dpbnn.plots import style

ROWS = [
    {"network": network, "method": method, "prior": "none", "values": values}
    for network, method, values in (
        ("mlp", "sgd", [0.3, 0.1, None]),
        ("mlp", "bbp", [None]),
        ("cnn", "sgd", [0.5]),
    )
]


def test_a_mark_is_the_median_of_the_runs_that_have_not_diverged():
    figure, (mlp, cnn) = compared(ROWS, {"ours": lambda row: row["values"]}, "accuracy", height=40)
    (medians,) = [line for line in mlp.get_lines() if line.get_label() == "ours"]
    assert (list(medians.get_xdata()), list(medians.get_ydata())) == ([pytest.approx(0.2)], [0])
    ends = mlp.get_lines()[0]
    assert (list(ends.get_xdata()), list(ends.get_ydata())) == ([0.1, 0.3], [0, 0])
    assert [label.get_text() for label in mlp.get_yticklabels()] == ["SGD, none", "BBP, none"]
    assert (mlp.get_title(loc="left"), cnn.get_title(loc="left")) == ("MLP", "CNN")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours"]


def test_a_curve_is_the_median_in_a_band_of_all_runs():
    _, (axes,) = style.panels(1, 1)
    lines(axes, {"ours": ([1, 2], [[0.1, 0.2], [0.3, 0.6], [0.2, 0.1]])}, ("epoch", "accuracy"))
    assert list(axes.get_lines()[0].get_ydata()) == [0.2, 0.2]
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == pytest.approx((0.1, 0.6))
