"""Differentially private Bayesian neural networks.

plan = dpbnn.PrivacyPlan.for_budget(epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=3515,
                                    clip_norm=1.5)
release = dpbnn.fit(model, X, y, method=dpbnn.BBP(learning_rate=0.25), plan=plan, likelihood=dpbnn.Categorical())
print(release.guarantee)
prediction = release.predict(X_new)
prediction.probabilities, prediction.mutual_information
"""

from dpbnn._lazy import lazy_names
from dpbnn._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
