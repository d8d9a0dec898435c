"""What 100 draws of the weights say about an easy and a hard digit: three methods, private and not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dpbnn import plots
from dpbnn.experiments.digits import DIGITS, easy_and_hard
from dpbnn.experiments.item import Found, Item, Job, Results, Size
from dpbnn.experiments.pictures import titled
from dpbnn.experiments.reliability import BAYESIAN, named
from dpbnn.experiments.seeded_run import SeededRun
from dpbnn.experiments.settings import METHODS, paper
from dpbnn.experiments.training import images, trained
from dpbnn.experiments.words import by_accountant, paragraph, table
from dpbnn.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ITEM"]


class DigitDraws(SeededRun):
    """What every draw from a run says about the two images, ``[draws, classes]`` each; a job."""

    what = "two digits"

    @classmethod
    def run_all(cls, jobs: "Sequence[DigitDraws]", device: str) -> Iterator[Found]:
        """All at once, where a GPU can."""
        own = images("mnist", jobs[0].size, device)
        two = own.x_test[list(easy_and_hard(jobs[0].size))]
        for job, release in zip(jobs, trained([(job.setting, job.seed) for job in jobs], own, device), strict=True):
            prediction: Any = release.predict(two, num_draws=job.size.draws, seed=0, keep_draws=True)
            digits = zip(DIGITS, prediction.draws.transpose(0, 1), strict=True)
            yield {digit: [[round(p, 5) for p in draw] for draw in draws.tolist()] for digit, draws in digits}


def runs_of(size: Size) -> list[tuple[str, bool, DigitDraws]]:
    """By method, not private and private."""
    return [
        (method, is_private, DigitDraws(paper("mnist", "mlp", method, "Gaussian", is_private, size), 0, size))
        for is_private in (False, True)
        for method in BAYESIAN
    ]


def jobs(size: Size) -> Sequence[Job]:
    """One of each."""
    return [run for _, _, run in runs_of(size)]


def results(size: Size, found: Mapping[str, Found]) -> Results:
    """The images, and what is said about them."""
    places = dict(zip(DIGITS, easy_and_hard(size), strict=True))
    shades = {digit: images("mnist", size, "cpu").x_test[place, 0] for digit, place in places.items()}
    rows = [
        {
            "method": method,
            "is_private": is_private,
            "settings": run.setting.to_json(),
            "seeds": [run.seed],
            "epsilon": by_accountant(run.setting.plan()),
            "draws": found[run.key],
        }
        for method, is_private, run in runs_of(size)
    ]
    pixels = {digit: [[round(p, 2) for p in line] for line in own.tolist()] for digit, own in shades.items()}
    return {"images": places, "pixels": pixels, "rows": rows}


def section(found: Results) -> str:
    """The rule, and mean and spread of the true class' probability."""
    rule = paragraph(f"""
        The images are chosen by a rule that takes no training. The easy one (number {found["images"]["easy"]} of the
        test images) is the 2 whose 50 nearest training images are all 2s and lie nearest; the hard one (number
        {found["images"]["hard"]}) is the 3 whose 50 nearest have the most mixed labels, by their entropy. On the MLP,
        at the paper's settings with a Gaussian prior, the probability of the true class over the draws of one run, mean
        and standard deviation:
    """)
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
    figure, axes = style.panels(4, 3, height=70)
    shown = [(digit, row) for digit in DIGITS for row in found["rows"]]
    for one, (digit, row) in zip(axes, shown, strict=True):
        plots.draw_probabilities(row["draws"][digit], axes=one)
        titled(one, f"{digit}: {'DP-' if row['is_private'] else ''}{METHODS[row['method']]}")
    for one, digit in zip(axes[::6], DIGITS, strict=True):
        small = one.inset_axes((0.55, 0.22, 0.3, 0.3))
        small.imshow(found["pixels"][digit], cmap="gray_r")
        small.set(xticks=[], yticks=[])
    return figure


ITEM = Item("posterior-of-a-digit", "What the draws say about a digit", jobs, results, section, picture)
