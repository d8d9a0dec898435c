"""A clipped gradient of models with other layers than those of the paper, as a ratio to a plain gradient.

    python benchmarks layers [--rounds 7] [--batch-size 256]

Book-keeping covers the common layers; others go by vmap or, where that cannot, by a loop over records.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import dpbnn
from dpbnn.plots.style import panels
from measure import device, take_turns
from pictures import bars
from program import Figures, Options, Program, Results, Table, counts
from recurrent import GRU, LSTM
from variants import clipped_gradient, plain_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, POSITIONS, CLASSES = 32, 20, 10
SEQUENCE, PICTURE = (POSITIONS, WIDTH), (3, 16, 16)


class Last(nn.Module):
    """A recurrent layer and a linear one on its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """``[records, classes]``"""
        states = self.layer(x)
        return self.head(states[0][:, -1] if isinstance(states, tuple) else states)


def mlp(
    activation: Callable[[], nn.Module] = nn.Tanh, wrap: Callable[[nn.Linear], nn.Module] = nn.Sequential
) -> nn.Module:
    """64-256-256-10."""
    layers = [wrap(nn.Linear(64, 256)), activation(), wrap(nn.Linear(256, 256)), activation()]
    return nn.Sequential(*layers, wrap(nn.Linear(256, CLASSES)))


def convolutions(norm: Callable[[], nn.Module] = nn.Identity) -> nn.Module:
    """Two of them, 16 channels."""
    layers = [nn.Conv2d(3, 16, 3), norm(), nn.Tanh(), nn.Conv2d(16, 16, 3, stride=2), norm(), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def transposed() -> nn.Module:
    """Two transposed convolutions, 16 channels."""
    layers = [nn.ConvTranspose2d(3, 16, 3), nn.Tanh(), nn.ConvTranspose2d(16, 16, 3), nn.Tanh()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.LazyLinear(CLASSES))


def transformer() -> nn.Module:
    """One layer of an encoder."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(POSITIONS * WIDTH, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (64,)),
    "Conv2d": (convolutions, PICTURE),
    "Conv2d, GroupNorm": (lambda: convolutions(lambda: nn.GroupNorm(4, 16)), PICTURE),
    "transformer layer": (transformer, SEQUENCE),
    "LSTM of Linear layers": (lambda: Last(LSTM(WIDTH, WIDTH)), SEQUENCE),
    "GRU of Linear layers": (lambda: Last(GRU(WIDTH, WIDTH)), SEQUENCE),
    "Conv2d, frozen BatchNorm2d": (lambda: convolutions(lambda: nn.BatchNorm2d(16).eval()), PICTURE),
    "ConvTranspose2d": (transposed, PICTURE),
    "MLP, PReLU": (lambda: mlp(nn.PReLU), (64,)),
    "MLP, weight norm": (lambda: mlp(wrap=weight_norm), (64,)),
    "LSTM": (lambda: Last(nn.LSTM(WIDTH, WIDTH, batch_first=True)), SEQUENCE),
    "GRU": (lambda: Last(nn.GRU(WIDTH, WIDTH, batch_first=True)), SEQUENCE),
}
"""Each with the shape of a record."""


def measure(options: Options) -> Figures:
    """All models."""
    rounds, size = (1, 4) if options.quick else (options.rounds, options.batch_size)
    rows = []
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        model, x, y = make().to(device()), torch.randn(size, *shape, device=device()), torch.arange(size) % CLASSES
        y = y.to(device())
        model(x)  # gives lazy layers their sizes
        engine = dpbnn.check_model(model, dpbnn.Categorical(), x[:0], y[:0]).engine
        ways = {"plain": plain_gradient(model, x, y), "ours": clipped_gradient(model, x, y)}
        steps = {label: lambda take=take, x=x, y=y: take(x, y) for label, take in ways.items()}
        times = take_turns(steps, rounds, 0.01 if options.quick else 0.25, name)
        rows.append({"model": name, "engine": engine} | times.beside("ours", "plain"))
    return {"batch_size": size, "rounds": rounds, "rows": rows}


def tables(machine: str, figures: Figures) -> list[Table]:
    """One table."""
    rows = [
        [row["model"], row["engine"].replace("_", "-"), f"{row['milliseconds']:.2f}", f"{row['ratio']:.2f}x"]
        for row in figures["rows"]
    ]
    title = f"{machine}, batch {figures['batch_size']}, torch {figures['torch']}"
    return [Table(title, ["model", "engine", "ms", "time / plain"], rows)]


def picture(results: Results) -> "Figure":
    """Time over plain, a panel for each machine."""
    figure, axes = panels(len(results), 1, height=65)
    for one, (name, figures) in zip(axes, results.items(), strict=True):
        bars(one, {row["model"]: row["ratio"] for row in figures["rows"]}, name, "time / plain gradient")
    return figure


PROGRAM = Program("layers", __file__, measure, tables, picture, counts(rounds=7, batch_size=256))
