"""The methods: how released gradients become a posterior."""

from typing import TYPE_CHECKING

from dpbnn._lazy import lazy_names
from dpbnn.methods.registry import METHODS, MethodEntry

if TYPE_CHECKING:
    from dpbnn.methods.bbp import BBP
    from dpbnn.methods.mc_dropout import MCDropout
    from dpbnn.methods.method import Method
    from dpbnn.methods.sgd import SGD
    from dpbnn.methods.sgld import SGLD
    from dpbnn.methods.store import KeepSamples, KeepSummary

__all__ = ["BBP", "METHODS", "SGD", "SGLD", "KeepSamples", "KeepSummary", "MCDropout", "Method", "MethodEntry"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "dpbnn.methods.bbp": ("BBP",),
            "dpbnn.methods.mc_dropout": ("MCDropout",),
            "dpbnn.methods.method": ("Method",),
            "dpbnn.methods.sgd": ("SGD",),
            "dpbnn.methods.sgld": ("SGLD",),
            "dpbnn.methods.store": ("KeepSamples", "KeepSummary"),
        },
    )
