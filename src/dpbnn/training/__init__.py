"""From a model and records to a release: what is settled first, the loop, checkpoints."""
