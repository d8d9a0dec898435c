"""A privacy linter: says what is wrong or risky about a set-up before anything is spent.

    >>> import dpbnn
    >>> level = dict(clip_norm=1.0, noise_multiplier=2.0, delta=0.1)
    >>> plan = dpbnn.PrivacyPlan(dataset_size=100, batch_size=10, steps=50, **level)
    >>> [finding.name for finding in inspect(Subject(plan))]
    ['delta-not-small']

Each finding has a name, a severity, what was found, why it matters and the cure. No rule looks at a private value: they
see shapes, settings, names of columns and of persons, the identity of arrays, and data that is declared public.

    hole    the promise would not hold, or there is none
    weak    it holds, and says little
    care    it holds, and is easily spoiled or misread
"""

from dpbnn.lint import data_rules, run_rules  # noqa: F401 - importing them enters their rules
from dpbnn.lint.finding import RULES, Finding, Rule, Subject, by_severity, inspect, noted, refuse, with_findings

__all__ = ["RULES", "Finding", "Rule", "Subject", "by_severity", "inspect", "noted", "refuse", "with_findings"]
