"""The version, which releases and checkpoints carry."""

__version__ = "0.1.0"
