"""The methods: how released gradients become a posterior."""

from typing import Any

from dpbnn.methods.bbp import BBP
from dpbnn.methods.mc_dropout import MCDropout
from dpbnn.methods.method import Method
from dpbnn.methods.sgd import SGD
from dpbnn.methods.sgld import SGLD
from dpbnn.methods.store import KeepSamples, KeepSummary

__all__ = ["BBP", "METHODS", "SGD", "SGLD", "KeepSamples", "KeepSummary", "MCDropout", "Method"]

METHODS: dict[str, type[Method[Any]]] = {"sgd": SGD, "sgld": SGLD, "bbp": BBP, "mc_dropout": MCDropout}
"""By name; adding a method is one file and one line here, and the contract tests pick it up."""
