"""What must not change between an interruption and the resumption: keyed digests of data, model and settings."""

import hashlib

import torch
from torch import Tensor

from dpbnn.training.steps.work import Work

__all__ = ["digests_of"]


def digests_of(work: Work) -> dict[str, bytes]:
    """Digests by name; without the key they say nothing about the records."""
    key, model = work.randomness.key, work.checked.objective.model
    data = hashlib.blake2b(key=key)
    for batch in work.records.all():
        for values in batch:
            data.update(f"{values.dtype}{tuple(values.shape)}".encode())
            data.update(_bytes(values))
    structure = hashlib.blake2b(repr(model).encode(), key=key)
    for name, parameter in model.named_parameters():
        structure.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}{parameter.requires_grad}".encode())
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for values in (*frozen, *model.buffers()):
        structure.update(_bytes(values))
    settings = {
        "the plan": work.plan.to_json(),
        "the method": repr(work.method),
        "the likelihood": repr(work.checked.objective.likelihood),
        "unsafe_diagnostics": repr(work.diagnostics.enabled),
        "the noise source": work.noise.source,
    }
    digests = {name: hashlib.blake2b(text.encode(), key=key).digest() for name, text in settings.items()}
    return {"the data": data.digest(), "the model": structure.digest()} | digests


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
