"""What a sampler keeps of its chain: the iterates themselves, or a summary of them."""

from dpbnn.methods.store.keep_samples import KeepSamples, SampleStore
from dpbnn.methods.store.keep_summary import KeepSummary, SummaryStore
from dpbnn.methods.store.sample_folders import reserved

__all__ = ["KeepSamples", "KeepSummary", "Keeping", "Store", "reserved"]

Keeping = KeepSamples | KeepSummary
Store = SampleStore | SummaryStore
"""`keep(step, weights, importance)` after each step; `posterior(weights)` at any time."""
