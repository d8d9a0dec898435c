"""Checks of noise: in units of the claimed noise its numbers must be standard normal, and independent."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import binomtest, chi2, kstest, norm

from dpbnn.audit.checks import Check

__all__ = ["checks_of_noise"]

MOST_COMPARED = 1500
"""The most rows that are compared in pairs."""
FAR = 3.5
"""In standard deviations: noise that is cut off has nothing beyond."""
FEWEST_PRODUCTS = 4096
"""The fewest products at a distance: the sum of fewer is not normal so far out."""
MOST_SORTED = 40_960
MOST_ALIKE = 0.01
"""The largest share of normals that equal another one; in float32 it is a thousandth."""


def checks_of_noise(
    residuals: Sequence[np.ndarray], tensors: np.ndarray, complete: Sequence[np.ndarray], bare: np.ndarray
) -> Iterator[Check]:
    """Compare noise with the claimed noise.

    Args:
        residuals: for each run, some numbers of its releases less the clipped sums, ``[releases, numbers]``.
        tensors: which tensor each number belongs to.
        complete: for each run, the noise of complete releases, one after another.
        bare: releases of no records.
    """
    together = np.concatenate(residuals)
    groups = (together[:, tensors == tensor] for tensor in np.unique(tensors))
    by_tensor = [chi2.cdf((values**2).sum(), values.size) for values in groups]
    yield Check("no tensor has less noise than is claimed", min(1.0, len(by_tensor) * min(by_tensor)))
    means = (together.mean(axis=0) ** 2).sum() * len(together)
    yield Check("a release is the clipped sum with noise of mean zero", float(chi2.sf(means, together.shape[1])))
    some = np.concatenate([releases[: MOST_COMPARED // 2] for releases in residuals])
    yield _unrelated("each step of each run has noise of its own", some)
    yield _unrelated("each number has noise of its own", together.T[:MOST_COMPARED])
    yield _never_again(np.concatenate(complete))
    far = int((np.abs(together) > FAR).sum())
    yield Check("noise is not cut off", float(binomtest(far, together.size, 2 * norm.sf(FAR)).pvalue))
    yield Check("noise is Gaussian", float(kstest(together.ravel()[:MOST_SORTED], "norm").pvalue))
    alike = 1 - len(np.unique(bare)) / len(bare)
    yield Check("noise has all digits of float32", float(alike <= MOST_ALIKE))


def _unrelated(name: str, rows: np.ndarray) -> Check:
    """The product of two independent rows, over the length of one, is standard normal."""
    products = np.abs(rows @ rows.T) / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)
    pairs = products[np.triu_indices(len(rows), 1)]
    return Check(name, min(1.0, pairs.size * float(2 * norm.sf(pairs.max()))) if pairs.size else 1.0)


def _never_again(noise: np.ndarray) -> Check:
    """No stretch of noise repeats, in a release (chunks, halves, tensors) or between releases.

    At each distance, the sum of products over the root of their number is standard normal.
    """
    name, number = "no stretch of noise comes again", len(noise)
    distances = np.arange(1, number - FEWEST_PRODUCTS)
    if not len(distances):
        return Check(name, 1.0)
    size = next_fast_len(2 * number, real=True)
    products = irfft(np.abs(rfft(noise.astype(np.float64), size)) ** 2, size)[distances]
    away = float(np.abs(products / np.sqrt(number - distances)).max())
    return Check(name, min(1.0, len(distances) * float(2 * norm.sf(away))))
