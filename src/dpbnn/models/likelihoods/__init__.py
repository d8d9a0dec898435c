"""Likelihoods: the probability of a target under the network's output, ``l_i(w) = -log p(y_i | f(x_i; w))``.

    >>> import torch, dpbnn
    >>> dpbnn.Categorical().negative_log_likelihood(torch.zeros(1, 4), torch.tensor([2]), {})
    tensor([1.3863])

Your likelihood is a subclass of `Likelihood`.
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
