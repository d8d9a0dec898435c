"""Every plot has axis labels and a width, covers nothing, and leaves nothing behind."""

import io
import subprocess
import sys

import pytest
import torch

from dpbnn import plots
from dpbnn.errors import DpbnnError
from tests.plots.pictures import (
    PLOTS,
)


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_drawn_has_axis_labels_and_a_width_of_100_mm(name):
    figure = PLOTS[name](None)
    written = io.BytesIO()
    figure.savefig(written)
    assert written.getvalue().startswith(b"\x89PNG")
    assert figure.get_figwidth() * 25.4 == pytest.approx(100)
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert figure.axes[-1].get_xlabel()


@pytest.mark.parametrize("name", PLOTS)
def test_what_is_written_lies_inside_the_figure_and_the_legend_covers_nothing(name):
    figure = PLOTS[name](None)
    figure.draw_without_rendering()
    page, axes = figure.bbox, figure.axes[0]
    legend = axes.get_legend().get_window_extent()
    assert legend.y0 >= axes.get_window_extent().y1
    titles = [title for title in (axes._left_title,) if title.get_text()]
    assert all(title.get_window_extent().y0 >= legend.y1 - 1 for title in titles)
    texts = [text for each in figure.axes for text in (each.xaxis.label, each.yaxis.label) if text.get_text()]
    for box in [legend, *(text.get_window_extent() for text in [*titles, *texts])]:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_can_be_drawn_into_given_axes(name):
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    left, right = figure.subfigures(1, 2)
    for axes in (left.subplots(), right.add_axes((0.2, 0.4, 0.7, 0.4))):
        assert PLOTS[name](axes) is figure
        assert axes.has_data()
    figure.savefig(io.BytesIO())


def test_pyplot_is_never_loaded_and_no_display_is_needed():
    code = (
        "import sys, torch, io; from dpbnn import plots; assert 'matplotlib' not in sys.modules;"
        "plots.chain_trace(torch.randn(50, 2)).savefig(io.BytesIO());"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env={"PATH": "", "PYTHONPATH": sys.path[0]})


@pytest.mark.parametrize("name", PLOTS)
def test_no_pyplot_state_and_no_setting_is_left_behind(name):
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    PLOTS[name](None).savefig(io.BytesIO())
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DpbnnError, match=r"pip install 'dpbnn\[plots\]'"):
        plots.chain_trace(torch.randn(50, 2))
