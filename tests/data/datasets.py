"""Data sets that draw nothing, or draw while they are read, and a run on them."""

import torch
from torch.utils.data import Dataset

import dpbnn

X, Y = torch.randn(50, 3), torch.randint(4, (50,))


class Pairs(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return X[index].numpy(), int(Y[index])


class Augmented(Dataset):
    """Draws while it is read, by torch or in another way."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 30

    def __getitem__(self, row):
        return torch.ones(3) * row + float(self.draw()), row % 2


def fit_on(dataset, **options):
    plan = dpbnn.PrivacyPlan(30, 10, 4, clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    how = {"method": dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical(), "unsafe_seed": 1}
    model = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return dpbnn.fit(model, dataset, **how | options).posterior.weights
