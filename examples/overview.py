"""The picture at the top of the README: `python examples/overview.py docs/images/overview.png`.

A private network reads handwritten digits that it has not seen. Above are three of them, with its answer and how sure
it is. Below is the use of that: the more it may abstain where it is least sure, the more of its answers are right.
"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from sklearn.datasets import load_digits

import dpbnn

EPSILON = 2.0
BLUE, GREY, RED = "#0072B2", "#8c8c8c", "#D55E00"


def read_digits():
    """Records to train on, and others aside; a pixel is at most 16 by the format of the data."""
    X, y = load_digits(return_X_y=True)
    aside = np.arange(len(X)) % 5 == 4
    return X[~aside] / 16, y[~aside], X[aside] / 16, y[aside]


def train(X, y):
    """The method and settings of `dpbnn demo`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    plan = dpbnn.PrivacyPlan.for_budget(
        epsilon=EPSILON, delta=1e-4, dataset_size=len(X), batch_size=720, steps=120, clip_norm=0.25
    )
    method, likelihood = dpbnn.BBP(learning_rate=4.0), dpbnn.Categorical()
    return dpbnn.fit(model, X, y, method=method, plan=plan, likelihood=likelihood, progress=False)


def show_digit(picture, bars, digit, probabilities, truth):
    """A digit, and the probability of each answer."""
    picture.imshow(digit.reshape(8, 8), cmap="Greys")
    picture.set_axis_off()
    answer = int(probabilities.argmax())
    bars.bar(range(10), probabilities, color=[BLUE if label == truth else RED for label in range(10)])
    outcome = "right" if answer == truth else f"it is {truth}"
    bars.set_title(f"“{answer}”, {probabilities[answer]:.0%} sure: {outcome}", fontsize=9)
    bars.set_xticks(range(10))
    bars.set_yticks([])
    bars.tick_params(labelsize=7, length=0)
    bars.set_ylim(0, 1.05)
    bars.set_xlabel("probability (blue: true)", fontsize=8)
    bars.spines[["top", "right", "left"]].set_visible(False)


def show_abstention(axes, is_right, uncertainty):
    """The accuracy among the answers that it is surest of."""
    shares = np.linspace(0.2, 1, 41)
    ordered = is_right[np.argsort(uncertainty)]
    accuracy = [ordered[: int(share * len(ordered))].mean() for share in shares]
    axes.plot(shares, accuracy, color=BLUE, linewidth=2)
    axes.axhline(accuracy[-1], color=GREY, linewidth=1, linestyle="--")
    axes.annotate(
        "accuracy if it answers all", (0.21, accuracy[-1]), (0, 4), textcoords="offset points", color=GREY, fontsize=9
    )
    axes.set_xlabel("share of new digits that it answers, the surest first")
    axes.set_ylabel("accuracy of its answers", fontsize=9)
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.yaxis.set_major_locator(MultipleLocator(0.02))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.spines[["top", "right"]].set_visible(False)


def main(path):
    """Train, predict, draw."""
    X, y, X_new, y_new = read_digits()
    release = train(X, y)
    prediction = release.predict(X_new, num_draws=200)
    probabilities, entropy = prediction.probabilities.numpy(), prediction.entropy.numpy()
    is_right = probabilities.argmax(1) == y_new
    order = np.argsort(entropy)
    wrong = order[~is_right[order]]
    shown = [order[is_right[order]][100], order[is_right[order]][-8], wrong[-3]]

    figure = Figure((7.2, 4.0), dpi=200, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.2))
    panels = above.subplots(1, 6, width_ratios=(1, 1.5) * 3)
    for column, chosen in enumerate(shown):
        show_digit(panels[2 * column], panels[2 * column + 1], X_new[chosen], probabilities[chosen], y_new[chosen])
    show_abstention(below.subplots(), is_right, entropy)
    title = f"A network that learned from {len(X):,} private records at epsilon {EPSILON:g} reads new digits"
    figure.suptitle(title, fontsize=11)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1])
