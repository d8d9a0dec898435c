"""The forms that per-record gradients take, each with its norms and its clipped sum."""
