"""scikit-learn estimators: private Bayesian networks for tables, in two lines.

    from dpbnn.sklearn import DPBayesClassifier
    model = DPBayesClassifier(epsilon=1.0, bounds=(0, 100), classes=[0, 1], dataset_size=2000).fit(X, y)
    print(model.guarantee_)

`bounds` are public: what a column can hold, not what it was seen to hold. Without them, a share of the budget buys
some.
"""

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError("dpbnn.sklearn needs scikit-learn, which is not installed: pip install 'dpbnn[sklearn]'")

from dpbnn.sklearn.classifier import DPBayesClassifier
from dpbnn.sklearn.pipeline import check_pipeline
from dpbnn.sklearn.regressor import DPBayesRegressor
from dpbnn.sklearn.search import DPGridSearch

__all__ = ["DPBayesClassifier", "DPBayesRegressor", "DPGridSearch", "check_pipeline"]
