"""Likelihoods: the probability of a target under the network's output, ``l_i(w) = -log p(y_i | f(x_i; w))``.

    >>> import torch, dpbnn
    >>> dpbnn.Categorical().negative_log_likelihood(torch.zeros(1, 4), torch.tensor([2]), {})
    tensor([1.3863])

A likelihood of your own is a subclass of `Likelihood`. It must

* define `negative_log_likelihood`: one number per record that depends on that record alone, in float32 or wider. It
  never raises on values: an invalid target gives NaN, and its record then contributes nothing;
* define `predictive`: `Probabilities` or `Moments` for each record;
* be a frozen dataclass, or hashable with a ``repr`` of all settings, by which checkpoints know it.

It may define

* `initial_weights`, if it has weights to learn. They are clipped and noised jointly with the network's;
* `check` and `check_values`, which refuse wrong shapes, types and values before training, with a remedy and without
  the values in the error;
* `synthetic_targets`, if not every number, or every class of the output, is a valid target for the model check.
"""

from dpbnn import _validate
from dpbnn.models.likelihoods.bernoulli import Bernoulli
from dpbnn.models.likelihoods.categorical import Categorical
from dpbnn.models.likelihoods.gaussian import LOG_STD_RANGE, HeteroscedasticGaussian, HomoscedasticGaussian
from dpbnn.models.likelihoods.likelihood import Likelihood, Moments, Probabilities

__all__ = [
    "LIKELIHOODS",
    "LOG_STD_RANGE",
    "Bernoulli",
    "Categorical",
    "HeteroscedasticGaussian",
    "HomoscedasticGaussian",
    "Likelihood",
    "Moments",
    "Probabilities",
    "checked_likelihood",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.__name__: kind for kind in (Categorical, Bernoulli, HomoscedasticGaussian, HeteroscedasticGaussian)
}
"""The built-in likelihoods by name; a saved release uses these names."""


def checked_likelihood(likelihood: object) -> Likelihood:
    """The likelihood; anything else is refused, and the error lists the built-in ones."""
    if not isinstance(likelihood, Likelihood):
        _validate.refuse(
            "likelihood", f"a Likelihood ({', '.join(LIKELIHOODS)}, or a subclass of your own)", likelihood
        )
    return likelihood
