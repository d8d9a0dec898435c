"""Recurrent layers written with `nn.Linear`: the same functions as torch's, and covered by book-keeping."""

import torch
from torch import Tensor, nn

__all__ = ["GRU", "LSTM"]


class GRU(nn.Module):
    """From ``[records, positions, inputs]`` the state after the last position."""

    gates = 3

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(inputs, self.gates * width), nn.Linear(width, self.gates * width)

    def forward(self, x: Tensor) -> Tensor:
        """``[records, width]``"""
        of_input, h = self.of_input(x), x.new_zeros(len(x), self.of_state.in_features)
        for position in range(x.shape[1]):
            reset, update, new = of_input[:, position].chunk(3, dim=1)
            own_reset, own_update, own_new = self.of_state(h).chunk(3, dim=1)
            keep = torch.sigmoid(update + own_update)
            h = keep * h + (1 - keep) * torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
        return h


class LSTM(GRU):
    """The same with a cell."""

    gates = 4

    def forward(self, x: Tensor) -> Tensor:
        """``[records, width]``"""
        of_input, h = self.of_input(x), x.new_zeros(len(x), self.of_state.in_features)
        c = h
        for position in range(x.shape[1]):
            take, keep, new, show = (of_input[:, position] + self.of_state(h)).chunk(4, dim=1)
            c = keep.sigmoid() * c + take.sigmoid() * new.tanh()
            h = show.sigmoid() * c.tanh()
        return h
