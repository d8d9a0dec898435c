"""Networks that dpbnn rebuilds by itself: loading a release of one needs no model.

    >>> MLP(64, [32], 10)(__import__("torch").zeros(2, 64)).shape
    torch.Size([2, 10])

With `dropout`, a dropout layer follows every hidden activation; the weights keep their names. Any other
`torch.nn.Module` trains just as well; `dpbnn.load` then asks for it again.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from dpbnn import _validate
from dpbnn.device.generators import Generators, drawing_from

__all__ = ["CNN", "MLP", "NETWORKS", "rebuild"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    """Fully connected layers; inputs are flattened. The paper's: ``MLP(784, [1200, 1200], 10)``."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, activation: str = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        # Python's numbers: a release writes the settings to JSON, which has no NumPy numbers.
        widths = [_validate.whole_number("a layer's width", width) for width in (inputs, *hidden, outputs)]
        self.settings: dict[str, Any] = {"inputs": widths[0], "hidden": widths[1:-1], "outputs": widths[-1]}
        self.settings |= {"activation": activation} | _dropout_setting(dropout)
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise(widths):
            layers += [nn.Linear(width, following), _activation(activation, dropout)]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """``[records, outputs]``"""
        return self.layers(x)


class CNN(nn.Module):
    """The paper's convolutional network for 28 x 28 pictures: 26,010 weights with one channel and ten classes."""

    def __init__(self, channels: int = 1, outputs: int = 10, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        channels = _validate.whole_number("channels", channels)
        outputs = _validate.whole_number("outputs", outputs)
        self.settings: dict[str, Any] = {"channels": channels, "outputs": outputs, "activation": activation}
        self.settings |= _dropout_setting(dropout)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=3),
            _activation(activation, dropout),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            _activation(activation, dropout),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(512, 32),
            _activation(activation, dropout),
            nn.Linear(32, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[records, outputs]``"""
        return self.layers(x)


def _activation(name: str, dropout: float) -> nn.Module:
    """One module, with or without dropout behind it, so that the layers after it keep their numbers."""
    activation = ACTIVATIONS[_validate.one_of("activation", name, ACTIVATIONS)]()
    return nn.Sequential(activation, nn.Dropout(dropout)) if dropout else activation


def _dropout_setting(dropout: float) -> dict[str, float]:
    """Empty without dropout: the release of a plain network then loads in earlier versions too."""
    return {"dropout": _validate.fraction("dropout", dropout)} if dropout != 0 else {}


NETWORKS: dict[str, type[MLP | CNN]] = {"MLP": MLP, "CNN": CNN}


def rebuild(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """One of these networks from its name and settings in a release, with freshly drawn weights.

    Guarantees:
        Torch's default generator is left as it was.
    """
    with drawing_from(Generators.seeded(0)):
        return NETWORKS[_validate.one_of("network", name, NETWORKS)](**settings)
