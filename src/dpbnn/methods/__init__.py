"""The methods: how released gradients become a posterior."""

from dpbnn._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
