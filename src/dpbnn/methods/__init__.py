"""The methods: how released gradients become a posterior."""

from dpbnn.methods.bbp import BBP
from dpbnn.methods.mc_dropout import MCDropout
from dpbnn.methods.method import Method
from dpbnn.methods.registry import METHODS, MethodEntry
from dpbnn.methods.sgd import SGD
from dpbnn.methods.sgld import SGLD
from dpbnn.methods.store import KeepSamples, KeepSummary

__all__ = ["BBP", "METHODS", "SGD", "SGLD", "KeepSamples", "KeepSummary", "MCDropout", "Method", "MethodEntry"]
