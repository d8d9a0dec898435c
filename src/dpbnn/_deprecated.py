"""Old public names: they work for one minor version, and warn."""

from dpbnn._warn import warn

__all__ = ["warn_renamed"]


def warn_renamed(old: str, new: str, gone_in: str = "0.3") -> None:
    """Say what to write instead."""
    warn(f"{old} is now {new}; the old name goes in dpbnn {gone_in}.", FutureWarning)
