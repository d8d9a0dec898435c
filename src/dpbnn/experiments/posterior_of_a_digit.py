"""What 100 draws of the weights say about an easy and a hard digit: three methods, private and not.

The digits are test images, chosen by a rule that takes no training: the easy one is the 2 whose 50 nearest training
images are 2s and lie nearest; the hard one is the 3 whose 50 nearest have the most mixed labels, by their entropy.
"""

from functools import cache, partial
from itertools import product
from typing import Any

import torch

import dpbnn
from dpbnn import plots
from dpbnn.data import Images
from dpbnn.experiments.item import Item, Later, Outcome, Results, Size
from dpbnn.experiments.pictures import Figure, titled
from dpbnn.experiments.reliability import BAYESIAN, title_of
from dpbnn.experiments.settings import METHODS, paper
from dpbnn.experiments.training import SeededRun, about, images, rounded
from dpbnn.experiments.words import markdown, table_of
from dpbnn.plots import style

__all__ = ["ITEM"]

DIGITS = {"easy": 2, "hard": 3}
NEIGHBOURS = 50


@cache
def easy_and_hard(size: Size) -> dict[str, int]:
    """Where the two digits are among the test images."""
    data = images("mnist", size, "cpu")
    places = {}
    for digit, label in DIGITS.items():
        candidates = torch.nonzero(data.y_test == label)[:, 0]
        distances = torch.cdist(data.x_test[candidates].flatten(1), data.x.flatten(1))
        nearest = distances.topk(NEIGHBOURS, largest=False)
        labels = torch.nn.functional.one_hot(data.y[nearest.indices], 10).double().mean(dim=1)
        mixed = torch.special.entr(labels).sum(dim=1)
        alike = torch.where(labels[:, label] == 1, nearest.values.mean(dim=1), torch.inf)
        places[digit] = int(candidates[alike.argmin() if digit == "easy" else mixed.argmax()])
    return places


class DigitDraws(SeededRun):
    """The probabilities that every draw from a run gives the two images, ``[draws, classes]`` each; a job."""

    purpose = "two digits"

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The probabilities of each draw, for both images."""
        two = data.x_test[list(easy_and_hard(self.size).values())]
        prediction: Any = release.predict(two, num_draws=self.size.draws, seed=0, keep_draws=True)
        return rounded(dict(zip(DIGITS, prediction.draws.transpose(0, 1), strict=True)))


def _template(size: Size) -> Results:
    """The two images, and a row for each method with the probabilities that its draws give them."""
    rows = []
    for is_private, method in product((False, True), BAYESIAN):
        setting = paper("mnist", "mlp", method, "Gaussian", is_private, size)
        draws = Later([DigitDraws(setting, 0, size)], lambda runs: {digit: runs[0][digit] for digit in DIGITS})
        rows.append({"method": method, "is_private": is_private, **about(setting, seeds=1), "draws": draws})
    places = Later([], lambda _: easy_and_hard(size))
    return {"images": places, "pixels": Later([], lambda _: _pixels(size)), "rows": rows}


def _pixels(size: Size) -> Any:
    shades = images("mnist", size, "cpu").x_test
    return rounded({digit: shades[place, 0] for digit, place in easy_and_hard(size).items()}, 2)


def _section(results: Results) -> str:
    def true_class(digit: str, row: Results) -> str:
        draws = torch.tensor(row["draws"][digit])[:, DIGITS[digit]]
        return f"{float(draws.mean()):.3f} ± {float(draws.std()):.3f}"

    columns = [(f"{digit} {label}", partial(true_class, digit)) for digit, label in DIGITS.items()]
    rows = [row | {"prior": "Gaussian"} for row in results["rows"]]
    return markdown(
        f"""
        The images are chosen by a rule that takes no training. The easy one (number {results["images"]["easy"]} of the
        test images) is the 2 whose 50 nearest training images are all 2s and lie nearest; the hard one (number
        {results["images"]["hard"]}) is the 3 whose 50 nearest have the most mixed labels, by their entropy. On the MLP,
        at the paper's settings with a Gaussian prior, the probability of the true class over the draws of one run, mean
        and standard deviation:
        """,
        table_of(rows, ("", title_of), *columns),
    )


def _picture(results: Results) -> Figure:
    """The easy digit above, the hard one below; for each, first without privacy, then with it."""
    figure, axes = style.panels(4, 3, height=70)
    for panel, (digit, row) in zip(axes, product(DIGITS, results["rows"]), strict=True):
        plots.draw_probabilities(row["draws"][digit], axes=panel)
        titled(panel, f"{digit}: {'DP-' if row['is_private'] else ''}{METHODS[row['method']]}")
    for panel, digit in zip(axes[::6], DIGITS, strict=True):
        small = panel.inset_axes((0.55, 0.22, 0.3, 0.3))
        small.imshow(results["pixels"][digit], cmap="gray_r")
        small.set(xticks=[], yticks=[])
    return figure


ITEM = Item("posterior-of-a-digit", "What the draws say about a digit", _template, _section, _picture)
