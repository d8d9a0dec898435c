"""The paper's regression data: a Gaussian process with noise that grows with x; and what an oracle predicts from it.

Inputs are uniform on (-3, 3). Targets are one draw of a Gaussian process (RBF kernel, variance 1, lengthscale 1) plus
independent noise of standard deviation ``0.3 x + 0.6``. The oracle knows kernel and noise: no method predicts better on
average, and its error is mostly the noise's own mean square, 0.63.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["NOISE_MEAN_SQUARE", "TEST_RECORDS", "TRAIN_RECORDS", "Simulated", "simulate"]

Array = npt.NDArray[np.float64]
TRAIN_RECORDS, TEST_RECORDS = 250, 150
NOISE_MEAN_SQUARE = 0.3**2 * 3 + 0.6**2
"""Of 0.3 x + 0.6, where x has variance 3."""


@dataclass(frozen=True)
class Simulated:
    """Training and test records, as columns."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def oracle(self, at: Tensor) -> Tensor:
        """The mean of the process at these inputs, given the training records."""
        x, y, new = (values.double().numpy()[:, 0] for values in (self.x, self.y, at))
        weights = np.linalg.solve(_kernel(x, x) + np.diag(_noise_std(x) ** 2), y)
        return torch.from_numpy(_kernel(new, x) @ weights)


def simulate(seed: int) -> Simulated:
    """400 records, the first 250 for training."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, TRAIN_RECORDS + TEST_RECORDS)
    smooth = np.linalg.cholesky(_kernel(x, x) + 1e-8 * np.eye(len(x))) @ generator.standard_normal(len(x))
    y = smooth + _noise_std(x) * generator.standard_normal(len(x))
    columns = [torch.from_numpy(values).float()[:, None] for values in (x, y)]
    (x_train, x_test), (y_train, y_test) = (both.split([TRAIN_RECORDS, TEST_RECORDS]) for both in columns)
    return Simulated(x_train, y_train, x_test, y_test)


def _noise_std(x: Array) -> Array:
    """Of the targets; its sign means nothing."""
    return 0.3 * x + 0.6


def _kernel(left: Array, right: Array) -> Array:
    distance = left[:, None] - right[None]
    kernel: Array = np.exp(-(distance**2) / 2)
    return kernel
