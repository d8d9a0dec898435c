"""The truth that every engine is held to: a plain loop, one record at a time, one autograd call each."""

import math

import torch

ROOM = 1 + 5e-3


def gradient_of_one(model, likelihood, x, y, own):
    """The gradient of one record's loss by plain autograd on the user's own module, or None if not finite."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    leaves = {name: value.clone().requires_grad_() for name, value in own.items()}
    loss = likelihood.negative_log_likelihood(model(x[None].clone()), y[None], leaves).sum()
    everything = parameters | leaves
    gradients = torch.autograd.grad(loss, list(everything.values()), allow_unused=True)
    return {
        name: (torch.zeros_like(value) if g is None else g).double()
        for (name, value), g in zip(everything.items(), gradients, strict=True)
    }


def norm(gradients):
    return math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))


def factor_of(length, clip_norm, clipping="flat"):
    """What a record's gradient of this norm is multiplied with."""
    limit = clip_norm / ROOM
    if math.isinf(clip_norm):
        return 1.0
    if clipping == "automatic":
        return limit / (length + 0.01)
    return min(1.0, limit / length) if length else 1.0


def clipped_sum(model, likelihood, x, y, clip_norm, own=None, clipping="flat"):
    own = own or {}
    names = {name: p for name, p in model.named_parameters() if p.requires_grad} | own
    total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in names.items()}
    for one_x, one_y in zip(x, y, strict=True):
        gradients = gradient_of_one(model, likelihood, one_x, one_y, own)
        length = norm(gradients)
        if not math.isfinite(length):
            continue
        factor = factor_of(length, clip_norm, clipping)
        for name, g in gradients.items():
            total[name] += factor * g
    return total


def assert_equals_truth(clipped, truth, tolerance=5e-6):
    """The two sums differ by at most `tolerance` of the truth; float32 itself is good to about 2e-6 here."""
    assert clipped.gradients.keys() == truth.keys()
    scale = max(norm(truth), 1e-12)
    for name, expected in truth.items():
        assert clipped.gradients[name].shape == expected.shape, name
        difference = float((clipped.gradients[name].double() - expected).norm())
        assert difference <= tolerance * scale, f"{name}: off by {difference / scale:.2e} of the sum"
