"""The methods: how released gradients become a posterior."""

from dpbnn.methods.method import Method
from dpbnn.methods.sgd import SGD

__all__ = ["METHODS", "SGD", "Method"]

METHODS = {"sgd": SGD}
"""By name; adding a method is one file and one line here, and the contract tests pick it up."""
