"""The one error and the one warning of the library."""

__all__ = ["DpbnnError", "DpbnnWarning"]


class DpbnnError(ValueError):
    """An input that cannot be accepted: the message says what was expected, what came and what to do."""


class DpbnnWarning(UserWarning):
    """Something legal that the user should know before trusting a result."""
