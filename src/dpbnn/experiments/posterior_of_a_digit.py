"""What 100 draws of the weights say about an easy and a hard digit: three methods, private and not."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from dpbnn import plots
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.reliability import BAYESIAN, named
from dpbnn.experiments.settings import METHODS, Setting, paper
from dpbnn.experiments.training import Training, easy_and_hard
from dpbnn.experiments.words import table
from dpbnn.plots.style import panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]

DIGITS = {"easy": 2, "hard": 3}


def settings_of(size: Size) -> list[tuple[str, bool, Setting]]:
    """By method, not private and private."""
    return [
        (method, is_private, paper("mnist", "mlp", method, "Gaussian", is_private, size))
        for is_private in (False, True)
        for method in BAYESIAN
    ]


def jobs(size: Size) -> Sequence[Job]:
    """The first run of each."""
    return [Training(setting, 0, size) for _, _, setting in settings_of(size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """The draws' probabilities for both images, ``[draws, classes]`` each."""
    rows = []
    for method, is_private, setting in settings_of(size):
        draws = found[Training(setting, 0, size).key]["easy_and_hard"]
        rows.append(
            {
                "method": method,
                "is_private": is_private,
                "settings": setting.to_json(),
                "seeds": [0],
                "draws": dict(zip(DIGITS, draws, strict=True)),
            }
        )
    return {"images": dict(zip(DIGITS, easy_and_hard("mnist", size), strict=True)), "rows": rows}


def section(found: Results) -> str:
    """The rule, and mean and spread of the true class' probability."""
    rule = (
        "The images are chosen by a rule that takes no training: of the test images of a 2 the one that is nearest to "
        "the mean training image of its class, compared with that of any other class (the easy one, number "
        f"{found['images']['easy']}), and of those of a 3 the one that is farthest (the hard one, number "
        f"{found['images']['hard']}). On the MLP, at the paper's settings with a Gaussian prior, the probability of "
        "the true class over the draws of one run, mean and standard deviation:"
    )
    rows = []
    for row in found["rows"]:
        cells = []
        for digit, label in DIGITS.items():
            own = torch.tensor(row["draws"][digit])[:, label]
            cells.append(f"{float(own.mean()):.3f} ± {float(own.std()):.3f}")
        rows.append([named(row["method"], "Gaussian", row["is_private"]), *cells])
    return f"{rule}\n\n{table(['', 'easy 2', 'hard 3'], rows)}"


def picture(found: Results) -> "Figure":
    """Easy above, hard below; not private and private."""
    figure, axes = panels(4, 3, height=70)
    shown = [(digit, row) for digit in DIGITS for row in found["rows"]]
    for one, (digit, row) in zip(axes, shown, strict=True):
        plots.draw_probabilities(row["draws"][digit], axes=one)
        titled(one, f"{digit}: {'DP-' if row['is_private'] else ''}{METHODS[row['method']]}")
    return figure


ITEM = Item("posterior-of-a-digit", "What the draws say about a digit", jobs, results, section, picture)
