"""What must not change between an interruption and the resumption: keyed digests of data, model and settings."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpbnn.data.records import Records

__all__ = ["digests_of"]


def digests_of(key: bytes, records: Records, model: nn.Module, settings: Mapping[str, str]) -> dict[str, bytes]:
    """By name. Without the key they say nothing about the records."""
    data = hashlib.blake2b(key=key)
    for batch in records.all():
        for values in batch:
            data.update(f"{values.dtype}{tuple(values.shape)}".encode())
            data.update(_bytes(values))
    structure = hashlib.blake2b(repr(model).encode(), key=key)
    for name, parameter in model.named_parameters():
        structure.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}{parameter.requires_grad}".encode())
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
    for values in frozen.values():
        structure.update(_bytes(values))
    found = {"the data": data.digest(), "the model": structure.digest()}
    return found | {name: hashlib.blake2b(text.encode(), key=key).digest() for name, text in settings.items()}


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
