"""Records that a ranking cannot tell apart."""

from torch import Tensor

__all__ = ["mean_over_ties"]


def mean_over_ties(keys: Tensor, values: Tensor) -> Tensor:
    """Each value replaced by the mean over all records with the same key.

    What is then computed along the sorted keys is the expectation over a random order of the ties, and so does not
    depend on the order in which the records came.

    >>> import torch
    >>> mean_over_ties(torch.tensor([0.5, 0.9, 0.5]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([0.5000, 1.0000, 0.5000])
    """
    _, group = keys.unique(return_inverse=True)
    return (group.bincount(weights=values) / group.bincount())[group].to(values)
