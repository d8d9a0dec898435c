"""An easy and a hard test image, by a rule that takes no training: what their nearest training images are.

The easy one is the 2 whose 50 nearest training images are 2s and lie nearest; the hard one is the 3 whose 50 nearest
have the most mixed labels, by their entropy.
"""

from functools import cache

import torch

from dpbnn.experiments.item import Size
from dpbnn.experiments.training import images

__all__ = ["DIGITS", "easy_and_hard"]

DIGITS = {"easy": 2, "hard": 3}
NEIGHBOURS = 50


@cache
def easy_and_hard(size: Size) -> tuple[int, int]:
    """Where they are among the test images."""
    own = images("mnist", size, "cpu")
    found = []
    for label in DIGITS.values():
        places = torch.nonzero(own.y_test == label)[:, 0]
        distances = torch.cdist(own.x_test[places].flatten(1), own.x.flatten(1))
        nearest = distances.topk(NEIGHBOURS, largest=False)
        labels = torch.nn.functional.one_hot(own.y[nearest.indices], 10).double().mean(dim=1)
        mixed = torch.special.entr(labels).sum(dim=1)
        alike = torch.where(labels[:, label] == 1, nearest.values.mean(dim=1), torch.inf)
        found.append(int(places[alike.argmin() if label == DIGITS["easy"] else mixed.argmax()]))
    easy, hard = found
    return easy, hard
