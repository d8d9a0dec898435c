"""Networks that dpbnn knows how to rebuild: a release of one needs no model to load.

    >>> MLP(64, [32], 10)(__import__("torch").zeros(2, 64)).shape
    torch.Size([2, 10])

Any other `torch.nn.Module` trains just as well; it is passed to `dpbnn.load` again.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from dpbnn import _validate

__all__ = ["CNN", "MLP", "NETWORKS", "rebuild"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    """Fully connected layers; inputs are flattened. The paper's: ``MLP(784, [1200, 1200], 10)``."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, activation: str = "relu") -> None:
        super().__init__()
        widths = [_validate.whole_number("a layer's width", width) for width in (inputs, *hidden, outputs)]
        act = ACTIVATIONS[_validate.one_of("activation", activation, ACTIVATIONS)]
        self.settings = {"inputs": inputs, "hidden": list(hidden), "outputs": outputs, "activation": activation}
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), act()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """``[records, outputs]``"""
        return self.layers(x)


class CNN(nn.Module):
    """The paper's convolutional network for 28 x 28 pictures: 26,010 weights with one channel and ten classes."""

    def __init__(self, channels: int = 1, outputs: int = 10, activation: str = "relu") -> None:
        super().__init__()
        act = ACTIVATIONS[_validate.one_of("activation", activation, ACTIVATIONS)]
        self.settings = {"channels": channels, "outputs": outputs, "activation": activation}
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=3),
            act(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            act(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(512, 32),
            act(),
            nn.Linear(32, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[records, outputs]``"""
        return self.layers(x)


NETWORKS: dict[str, type[MLP | CNN]] = {"MLP": MLP, "CNN": CNN}


def rebuild(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A network of ours from what its release says about it."""
    return NETWORKS[_validate.one_of("network", name, NETWORKS)](**settings)
