"""Networks of every kind, and a posterior that holds the weights it was given."""

import torch
from torch import nn

from dpbnn.models.networks import CNN, MLP


class Draws:
    """A posterior that holds some weights; with `keeps_dropout` the first of them."""

    kind = "draws"

    def __init__(self, weights, keeps_dropout=False):
        self.weights, self.keeps_dropout = weights, keeps_dropout

    @staticmethod
    def around(model, count, spread=0.3, extra=()):
        start = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad} | dict(extra)
        return Draws([{n: v + spread * torch.randn_like(v) for n, v in start.items()} for _ in range(count)])

    @property
    def names(self):
        return tuple(self.weights[0])

    def draw(self, num_draws, seed):
        assert isinstance(seed, int)
        yield from self.weights[: 1 if self.keeps_dropout else num_draws]

    def tensors(self):
        return {}


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.head = kind(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(dim=1))


class Deciding(nn.Module):
    """Runs another way for weights of one sign."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if self.layer.bias.sum() > 0 else self.layer(x).tanh()


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x):
        x *= self.scale
        return self.layer(torch.relu_(x))


def frozen():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    model[1].running_mean.normal_()
    return model


MODELS = {  # the model, a record's shape, whether vmap can run it
    "mlp": (lambda: MLP(4, [6, 5], 3), (4,), True),
    "cnn": (lambda: CNN(outputs=3), (1, 28, 28), True),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 4), False),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4), False),
    "transformer": (Attentive, (5, 4), False),
    "deciding": (Deciding, (4,), False),
    "overwriting": (Overwriting, (4,), False),
    "frozen": (frozen, (4,), True),
    "dropout": (lambda: MLP(4, [6], 3, dropout=0.5), (4,), True),
}
