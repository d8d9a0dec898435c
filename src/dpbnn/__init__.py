"""Differentially private Bayesian neural networks.

plan = dpbnn.PrivacyPlan.for_budget(epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=3515,
                                    clip_norm=1.5)
release = dpbnn.fit(model, X, y, method=dpbnn.SGD(learning_rate=0.25), plan=plan, likelihood=dpbnn.Categorical())
print(release.guarantee)
release.predict(X_new).probabilities
"""

from dpbnn import networks
from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.likelihoods import Categorical, HomoscedasticGaussian, Likelihood
from dpbnn.methods import SGD
from dpbnn.priors import Flat, Gaussian
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.release import Release, load
from dpbnn.training import Execution, fit
from dpbnn.types import DpbnnError, DpbnnWarning

__version__ = "0.1.0"

__all__ = [  # in reading order
    "SGD",
    "Categorical",
    "DpbnnError",
    "DpbnnWarning",
    "Execution",
    "Flat",
    "Gaussian",
    "HomoscedasticGaussian",
    "Likelihood",
    "PrivacyGuarantee",
    "PrivacyPlan",
    "Release",
    "check_model",
    "clipped_gradient_sum",
    "fit",
    "load",
    "networks",
]
