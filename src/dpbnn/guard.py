"""The old name of `dpbnn.lint`."""

from dpbnn._deprecated import warn_renamed
from dpbnn.lint import RULES, Finding, Rule, Setup, by_severity, inspect, noted, refuse, with_findings

__all__ = ["RULES", "Finding", "Rule", "Setup", "by_severity", "inspect", "noted", "refuse", "with_findings"]

warn_renamed("dpbnn.guard", "dpbnn.lint")
