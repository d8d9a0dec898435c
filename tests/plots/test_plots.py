"""Every plot is drawn without a warning, says what its axes are, leaves nothing behind, and shows what it was given."""

import io
import math
import subprocess
import sys

import pytest
import torch

import dpbnn
from dpbnn import metrics, plots
from dpbnn.errors import DpbnnError
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


def test_every_public_plot_is_tried_here():
    assert set(PLOTS) == set(plots.__all__)


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


def test_a_prediction_that_is_too_sure_gives_a_curve_below_the_diagonal():
    for temperature, worst in ((1.0, 12), (4.0, 60)):
        curve = reliability(4000, temperature)
        confidence, accuracy = measured(plots.reliability_diagram(curve)).T
        full = (curve.count > 100)[curve.count > 0].numpy()
        gap = (confidence - accuracy)[full]
        assert abs(gap).max() < worst
        assert (gap.mean() > 15) == (temperature == 4.0)


def test_the_reliability_diagram_says_its_errors_and_skips_empty_bins():
    curve = metrics.classification.reliability_curve([[1.0, 0.0], [0.6, 0.4]], [0, 1], num_bins=10)
    figure = plots.reliability_diagram(curve)
    assert figure.axes[0].get_title("left") == "calibration error 30.0 % (worst bin 60.0 %), n = 2"
    assert measured(figure).tolist() == [[60.0, 0.0], [100.0, 100.0]]
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == pytest.approx([0, 0, 0, 0, 0, 50, 0, 0, 0, 50])


def test_points_of_a_reliability_diagram_have_their_intervals_no_line_between_them_and_fade_with_few_records():
    confidence = torch.cat([torch.full((1,), 0.65), torch.full((10,), 0.75), torch.full((40,), 0.85)])
    right = torch.arange(51) % 4 > 0
    curve = metrics.classification.reliability_curve(torch.stack([confidence, 1 - confidence], 1), ~right, num_bins=10)
    axes = plots.reliability_diagram(curve).axes[0]
    bars, points, _ = axes.collections  # the third is for the legend
    low, high = (100 * bound[curve.count > 0] for bound in curve.accuracy_interval)
    drawn = torch.tensor([segment[:, 1].tolist() for segment in bars.get_segments()])
    assert drawn.numpy() == pytest.approx(torch.stack([low, high], 1).numpy())
    for faded in (bars, points):
        assert faded.get_alpha().tolist() == pytest.approx([0.1925, 0.575, 1.0])
    assert [name for name, at in lines(axes).items() if len(at) > 1] == ["perfect calibration"]


def test_the_confidence_histogram_counts_records_and_with_share_each_group_is_100_percent():
    counted = metrics.classification.confidence_histogram([[0.95, 0.05]] * 9 + [[0.55, 0.45]], [0] * 9 + [1])
    correct, wrong = (stairs.get_data().values for stairs in plots.confidence_histogram(counted).axes[0].patches)
    assert (correct.max(), correct.sum(), wrong.max(), wrong.sum()) == (9, 9, 1, 1)
    shares = plots.confidence_histogram(counted, share=True).axes[0]
    assert [stairs.get_data().values.max() for stairs in shares.patches] == [100, 100]
    axes = plots.confidence_histogram(counted).axes[0]
    assert (axes.get_ylabel(), shares.get_ylabel()) == ("records", "share of the group (%)")
    assert all(tick == int(tick) for tick in axes.get_yticks())


def test_the_rejection_diagram_says_how_many_records_there_are():
    axes = plots.rejection_diagram(metrics.uncertainty.rejection_curve([0.1, 0.2, 0.3], [True, True, False])).axes[0]
    assert axes.get_title("left") == f"area under the curve {(2 / 3 + 1 + 1) / 3:.3f}, n = 3"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("records handed to a person (%)", "accuracy on the rest (%)")


def test_the_sides_of_the_coverage_diagram_are_named():
    curve = metrics.regression.coverage_curve(real(), torch.zeros(50))
    at = {text.get_text(): text.get_position() for text in plots.coverage_diagram(curve).axes[0].texts}
    assert at["too cautious"][1] > at["too cautious"][0]
    assert at["too sure"][1] < at["too sure"][0]


def test_intervals_too_narrow_give_a_coverage_below_the_diagonal():
    prediction = RealPrediction(torch.zeros(1, 2000, 1), torch.full((1, 2000, 1), 0.04))
    curve = metrics.regression.coverage_curve(prediction, torch.randn(2000))
    drawn = lines(plots.coverage_diagram(curve).axes[0])["measured"]
    assert (drawn[:, 1] < drawn[:, 0]).all()
    assert drawn[-1, 1] < 45


def test_the_title_has_the_auroc_of_the_chosen_score():
    ordinary, foreign = classes(), classes(scale=0.5)
    for score in ("entropy", "mutual_information"):
        auroc = metrics.uncertainty.out_of_distribution_auroc(getattr(ordinary, score), getattr(foreign, score))
        axes = plots.out_of_distribution_histogram(ordinary, foreign, score).axes[0]
        assert axes.get_title("left") == f"told apart in {100 * auroc:.1f} % of pairs (AUROC {auroc:.3f})"
        assert axes.get_xlabel() == f"{score.replace('_', ' ')} (nats)"
        for stairs in axes.patches:
            assert stairs.get_data().values.sum() == pytest.approx(100)


def test_the_band_of_the_means_lies_inside_that_of_new_targets():
    outer, inner = (band.get_paths()[0].get_extents() for band in bands().axes[0].collections)
    assert outer.y0 < inner.y0 < inner.y1 < outer.y1
    one_draw = plots.regression_bands([0.0, 1.0], RealPrediction(torch.zeros(1, 2, 1), torch.ones(1, 2, 1)))
    assert len(one_draw.axes[0].collections) == 1


def test_inputs_in_any_order_are_drawn_from_left_to_right():
    prediction = RealPrediction(torch.tensor([[[3.0], [1.0], [2.0]]]), torch.ones(1, 3, 1))
    drawn = lines(plots.regression_bands([[3.0], [1.0], [2.0]], prediction).axes[0])["mean"]
    assert drawn.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert bands(labels=("dose (mg)", "response (mmol/l)")).axes[0].get_xlabel() == "dose (mg)"


def test_only_the_likeliest_classes_are_shown_where_there_are_many():
    logits = torch.zeros(20, 40)
    logits[:, 30] = 3.0
    figure = plots.draw_probabilities(logits.softmax(1), names=[f"class {k}" for k in range(40)])
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(shown) == 12
    assert "class 30" in shown


def test_a_sticky_chain_is_worth_less_than_its_length():
    independent = torch.randn(1000, 1)
    drifting = torch.randn(1000, 1).cumsum(0)
    figure = plots.chain_trace(torch.cat([independent, drifting], 1), names=["free", "stuck"])
    worth = {label.split(":")[0]: float(label.split("ESS ")[1]) for label in lines(figure.axes[0])}
    assert worth["free"] > 700
    assert worth["stuck"] < 50
    median = worth["stuck"]  # the lower one of two, as torch has it
    assert figure.axes[0].get_title("left") == f"1,000 samples, worth {median:.0f} independent ones (median)"


def test_one_record_and_groups_without_a_record_are_drawn():
    one = metrics.classification.confidence_histogram([[1.0, 0.0]], [0])
    plots.confidence_histogram(one).savefig(io.BytesIO())
    plots.rejection_diagram(metrics.uncertainty.rejection_curve([0.5], [False])).savefig(io.BytesIO())
    plots.reliability_diagram(metrics.classification.reliability_curve([[1.0, 0.0]], [1])).savefig(io.BytesIO())
    plots.draw_probabilities([[1.0, 0.0]]).savefig(io.BytesIO())


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.draw_probabilities([[2.0, 1.0]]), "must lie in 0 to 1"),
        (lambda: plots.draw_probabilities([[math.nan, 1.0]]), "must lie in 0 to 1"),
        (lambda: plots.draw_probabilities([[0.5, 0.5]], names=["one"]), "one name for each of 2, got 1"),
        (lambda: plots.chain_trace([1.0, 2.0]), r"\[samples, coordinates\]"),
        (lambda: plots.out_of_distribution_histogram(classes(), classes(), "doubt"), "score must be one of"),
        (lambda: plots.out_of_distribution_histogram(classes(), real()), "foreign must be a ClassPrediction"),
        (lambda: plots.regression_bands([1.0], real()), "each of the 50 records, got 1 rows; .* release.predict"),
        (lambda: plots.regression_bands(torch.ones(50, 3), real()), r"x must be one column.*\[50, 3\].* others fixed"),
        (lambda: plots.regression_bands(torch.ones(50), classes(50)), "must be a RealPrediction.* got ClassPrediction"),
        (lambda: bands(data=(torch.ones(4, 2), torch.ones(4))), r"data\[0\] must be one column"),
        (lambda: bands(data=(torch.ones(4), torch.ones(4, 2))), r"data\[1\] must be one column"),
        (lambda: bands(output=1), "output must be below 1"),
        (lambda: bands(level=95), "level must be > 0 and < 1"),
        (lambda: bands(data=[1.0]), "data must be a pair"),
        (lambda: bands(data=([1.0, 2.0], [1.0])), "each of the 2 records"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(DpbnnError, match=message):
        draw()


FIRST = {
    plots.reliability_diagram: ("reliability_curve(prediction.probabilities, y)", classes),
    plots.confidence_histogram: ("confidence_histogram(prediction.probabilities, y)", classes),
    plots.rejection_diagram: ("rejection_curve(prediction.entropy, prediction.labels == torch.as_tensor(y))", classes),
    plots.coverage_diagram: ("coverage_curve(prediction, y)", real),
}


@pytest.mark.parametrize("plot", FIRST, ids=lambda plot: plot.__name__)
def test_a_prediction_in_place_of_a_result_is_refused_with_a_call_that_works(plot):
    call, make = FIRST[plot]
    prediction = make()
    with pytest.raises(DpbnnError, match=f"got {type(prediction).__name__}") as refused:
        plot(prediction)
    advice = str(refused.value).split("first: ")[1]
    assert advice.startswith("dpbnn.metrics.")
    assert advice.endswith(call)
    y = [0.0] * 50 if make is real else [0] * 400
    plot(eval(advice, {"dpbnn": dpbnn, "torch": torch, "prediction": prediction, "y": y}))


def test_a_point_estimate_without_mutual_information_is_drawn():
    certain = ClassPrediction(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0.7, 0.7]), 1)
    axes = plots.out_of_distribution_histogram(certain, certain, "mutual_information").axes[0]
    assert axes.get_title("left") == "told apart in 50.0 % of pairs (AUROC 0.500)"
    assert axes.get_xlim() == pytest.approx((0, math.log(2)))
