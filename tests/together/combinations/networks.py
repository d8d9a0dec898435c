"""Tiny networks, one for each way in which gradients of records are taken; all see records of eight numbers.

Book-keeping covers "mlp", "cnn", "tied" and "embedding", vmap "bare", and a loop over records "custom" and "gru".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH = 8
TOKENS = 10
DROPPED = 0.4


class Numbers(nn.Module):
    """Whole numbers become quantities around 0; floating-point ones stay. The buffer must stay as it is, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("middle", torch.tensor(TOKENS / 2))

    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_floating_point() else (x - self.middle) / self.middle


class Bare(nn.Module):
    """Weights outside of any layer."""

    def __init__(self, outputs: int, dropout: nn.Module) -> None:
        super().__init__()
        self.numbers, self.dropout = Numbers(), dropout
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.weight = nn.Parameter(torch.randn(WIDTH, outputs) / 3)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.numbers(x) * self.scale)) @ self.weight + self.bias


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, outputs: int, dropout: nn.Module) -> None:
        super().__init__()
        self.numbers, self.dropout = Numbers(), dropout
        self.first, self.second, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, outputs)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(self.numbers(x)))
        return self.head(self.dropout(torch.tanh(self.second(hidden))))


class Tokens(nn.Module):
    """A table of vectors, and their mean."""

    def __init__(self, outputs: int, dropout: nn.Module) -> None:
        super().__init__()
        self.table, self.dropout, self.head = nn.Embedding(TOKENS, 4), dropout, nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.table(x).mean(dim=1)))


class _ScaledSoftsign(torch.autograd.Function):
    """``x s / (1 + |x s|)``: a function of one's own with a weight in it, which neither book-keeping nor vmap knows."""

    @staticmethod
    def forward(context, x, scale):
        context.save_for_backward(x, scale)
        return x * scale / (1 + (x * scale).abs())

    @staticmethod
    def backward(context, gradient):
        x, scale = context.saved_tensors
        inner = gradient / (1 + (x * scale).abs()).square()
        return inner * scale, (inner * x).sum(dim=0)


class Custom(nn.Module):
    """Weights outside of any layer that go through such a function."""

    def __init__(self, outputs: int, dropout: nn.Module) -> None:
        super().__init__()
        self.numbers, self.dropout = Numbers(), dropout
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(_ScaledSoftsign.apply(self.numbers(x), self.scale)))


class Recurrent(nn.Module):
    """Four steps of two numbers."""

    def __init__(self, outputs: int, dropout: nn.Module) -> None:
        super().__init__()
        self.numbers, self.dropout = Numbers(), dropout
        self.recurrent, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(self.numbers(x).unflatten(1, (WIDTH // 2, 2)))
        return self.head(self.dropout(states[:, -1]))


def _mlp(outputs: int, dropout: nn.Module) -> nn.Module:
    return nn.Sequential(Numbers(), nn.Linear(WIDTH, 6), nn.Tanh(), dropout, nn.Linear(6, outputs))


def _cnn(outputs: int, dropout: nn.Module) -> nn.Module:
    images = nn.Unflatten(1, (1, WIDTH // 2, 2)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten()
    return nn.Sequential(Numbers(), *images, dropout, nn.Linear(9, outputs))


@dataclass(frozen=True)
class Kind:
    """How a network is made, the beginning of what can be frozen in it, and the engine that takes its gradients: when
    nothing is frozen, and when this is."""

    make: Callable[[int, nn.Module], nn.Module]
    frozen: str
    engines: tuple[str, str]


ALWAYS_FAST = ("book_keeping", "book_keeping")
NETWORKS = {
    "mlp": Kind(_mlp, "1.", ALWAYS_FAST),
    "cnn": Kind(_cnn, "2.", ALWAYS_FAST),
    "bare": Kind(Bare, "scale", ("vmap", "vmap")),
    "tied": Kind(Tied, "first.bias", ALWAYS_FAST),
    "embedding": Kind(Tokens, "table", ALWAYS_FAST),
    "custom": Kind(Custom, "head.weight", ("loop", "loop")),
    "gru": Kind(Recurrent, "recurrent", ("loop", "book_keeping")),
}


def make_network(name: str, outputs: int, *, has_dropout: bool, is_frozen: bool, seed: int = 0) -> nn.Module:
    """A network with weights from this seed; torch's own generator is left alone."""
    kind = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind.make(outputs, nn.Dropout(DROPPED) if has_dropout else nn.Identity())
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not (is_frozen and parameter_name.startswith(kind.frozen)))
    return model
