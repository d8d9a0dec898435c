"""What a pipeline learns from private rows before a private estimator sees them."""

from typing import Any

from dpbnn import _validate
from dpbnn.lint import RULES, Finding
from dpbnn.lint.data_rules import learning_steps

__all__ = ["check_pipeline"]


def check_pipeline(pipeline: Any) -> list[Finding]:
    """Name the steps that learn from the rows without noise, and the cure; an empty list means that none does.

    An estimator sees what the steps before it return, and not the steps, so that it cannot warn by itself. Its
    guarantee therefore assumes that they learned nothing.

        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from dpbnn.sklearn import DPBayesClassifier
        >>> (finding,) = check_pipeline(make_pipeline(StandardScaler(), DPBayesClassifier()))
        >>> finding.severity, finding.found
        ('hole', 'the rows are not private yet where these learn from them: StandardScaler')
        >>> finding.cure
        'Use public bounds and named categories.'
    """
    if not hasattr(pipeline, "steps"):
        _validate.refuse("pipeline", "a Pipeline of scikit-learn's", pipeline)
    steps = learning_steps(pipeline)
    return [RULES["fitted-preprocessing"].finding(steps)] if steps else []
