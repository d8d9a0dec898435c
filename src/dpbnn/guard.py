"""The old name of `dpbnn.lint`."""

from dpbnn._warn import warn_renamed
from dpbnn.lint import RULES, Finding, Rule, by_severity, inspect, noted, refuse, with_findings
from dpbnn.lint import Subject as Setup

__all__ = ["RULES", "Finding", "Rule", "Setup", "by_severity", "inspect", "noted", "refuse", "with_findings"]

warn_renamed("dpbnn.guard", "dpbnn.lint")
