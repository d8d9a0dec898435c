"""Differentially private Bayesian neural networks.

plan = dpbnn.PrivacyPlan.for_budget(epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=3515,
                                    clip_norm=1.5)
release = dpbnn.fit(model, X, y, method=dpbnn.BBP(learning_rate=0.25), plan=plan, likelihood=dpbnn.Categorical())
print(release.guarantee)
prediction = release.predict(X_new)
prediction.probabilities, prediction.mutual_information
"""

from dpbnn import methods, metrics, plots, posterior
from dpbnn._version import __version__ as __version__
from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.device.execution import Execution
from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.methods import BBP, SGD, SGLD, KeepSamples, KeepSummary, MCDropout
from dpbnn.models import networks
from dpbnn.models.dropout import with_dropout
from dpbnn.models.likelihoods import Bernoulli, Categorical, HeteroscedasticGaussian, HomoscedasticGaussian, Likelihood
from dpbnn.models.priors import Flat, Gaussian, Grouped, Laplace, Prior, ScaleMixture
from dpbnn.privacy.budget import BudgetAccountant, BudgetError
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.release.release import Release, load
from dpbnn.training.fit import fit
from dpbnn.training.many import Setup, fit_many

__all__ = [
    "BBP",
    "SGD",
    "SGLD",
    "Bernoulli",
    "BudgetAccountant",
    "BudgetError",
    "Categorical",
    "DpbnnError",
    "DpbnnWarning",
    "Execution",
    "Flat",
    "Gaussian",
    "Grouped",
    "HeteroscedasticGaussian",
    "HomoscedasticGaussian",
    "KeepSamples",
    "KeepSummary",
    "Laplace",
    "Likelihood",
    "MCDropout",
    "Prior",
    "PrivacyGuarantee",
    "PrivacyPlan",
    "Release",
    "ScaleMixture",
    "Setup",
    "check_model",
    "clipped_gradient_sum",
    "fit",
    "fit_many",
    "load",
    "methods",
    "metrics",
    "networks",
    "plots",
    "posterior",
    "with_dropout",
]


def __getattr__(name: str) -> object:
    """`dpbnn.sklearn`, which needs scikit-learn, comes when it is asked for."""
    if name == "sklearn":
        import importlib

        return importlib.import_module("dpbnn.sklearn")
    raise AttributeError(f"module 'dpbnn' has no attribute {name!r}")
