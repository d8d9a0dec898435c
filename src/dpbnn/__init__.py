"""Differentially private Bayesian neural networks.

plan = dpbnn.PrivacyPlan.for_budget(epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=3515,
                                    clip_norm=1.5)
release = dpbnn.fit(model, X, y, method=dpbnn.BBP(learning_rate=0.25), plan=plan, likelihood=dpbnn.Categorical())
print(release.guarantee)
prediction = release.predict(X_new)
prediction.probabilities, prediction.mutual_information
"""

from typing import TYPE_CHECKING

from dpbnn._lazy import lazy_names
from dpbnn._version import __version__ as __version__
from dpbnn.errors import DpbnnError, DpbnnWarning

if TYPE_CHECKING:
    from dpbnn import audit, data, lint, methods, metrics, models, networks, plots, posterior, privacy, tables
    from dpbnn.clipping import check_model, clipped_gradient_sum
    from dpbnn.device.execution import Execution
    from dpbnn.methods import BBP, SGD, SGLD, KeepSamples, KeepSummary, MCDropout
    from dpbnn.models.dropout import with_dropout
    from dpbnn.models.likelihoods import (
        Bernoulli,
        Categorical,
        HeteroscedasticGaussian,
        HomoscedasticGaussian,
        Likelihood,
    )
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
    "audit",
    "check_model",
    "clipped_gradient_sum",
    "data",
    "fit",
    "fit_many",
    "lint",
    "load",
    "methods",
    "metrics",
    "models",
    "networks",
    "plots",
    "posterior",
    "privacy",
    "tables",
    "with_dropout",
]

_HOMES = {
    "dpbnn.clipping": ("check_model", "clipped_gradient_sum"),
    "dpbnn.device.execution": ("Execution",),
    "dpbnn.methods": ("BBP", "SGD", "SGLD", "KeepSamples", "KeepSummary", "MCDropout"),
    "dpbnn.models.dropout": ("with_dropout",),
    "dpbnn.models.likelihoods": (
        "Bernoulli",
        "Categorical",
        "HeteroscedasticGaussian",
        "HomoscedasticGaussian",
        "Likelihood",
    ),
    "dpbnn.models.priors": ("Flat", "Gaussian", "Grouped", "Laplace", "Prior", "ScaleMixture"),
    "dpbnn.privacy.budget": ("BudgetAccountant", "BudgetError"),
    "dpbnn.privacy.guarantee": ("PrivacyGuarantee",),
    "dpbnn.privacy.plan": ("PrivacyPlan",),
    "dpbnn.release.release": ("Release", "load"),
    "dpbnn.training.fit": ("fit",),
    "dpbnn.training.many": ("Setup", "fit_many"),
}
"""What is imported when it is first asked for, by the module that holds it."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
