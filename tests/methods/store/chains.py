"""Chains of iterates, and stores that have seen them."""

import torch

SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "b.weight": (2, 3)}
LIKE = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def chain(steps, seed=0, dtype=torch.float32):
    """Iterates with strong correlations between weights, and a mean far from zero."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    loadings = torch.randn(4, size, generator=generator) * torch.tensor([3.0, 1.0, 0.3, 0.1])[:, None]
    flat = torch.randn(steps, 4, generator=generator) @ loadings + 0.2 * torch.randn(steps, size, generator=generator)
    flat = flat + 10
    for row in flat.to(dtype):
        parts = row.split([torch.Size(shape).numel() for shape in SHAPES.values()])
        yield {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def kept(keeping, steps=200, importance=lambda step: 1.0, **options):
    store = keeping.open(LIKE, steps)
    for step, weights in enumerate(chain(steps, **options)):
        store.keep(step, weights, importance(step))
    return store


def flat_samples(steps=200, first=100, **options):
    rows = [torch.cat([v.flatten() for v in weights.values()]) for weights in chain(steps, **options)]
    return torch.stack(rows)[first:]


def half(store, **options):
    """Most of a chain; 5 samples of it are kept."""
    for step, weights in enumerate(list(chain(200, **options))[:150]):
        store.keep(step, weights, 1.0)
    return store
