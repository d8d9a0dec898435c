"""A short path: `dpbnn.networks` is `dpbnn.models.networks`."""

from dpbnn.models.networks import CNN, MLP, NETWORKS, rebuild

__all__ = ["CNN", "MLP", "NETWORKS", "rebuild"]
