"""Many tensors as one array of bytes, as SGLang's `flattened_bucket` format lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor


def flat_size(tensors: Sequence[tuple[str, Tensor]]) -> int:
    """Bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)


def flatten(tensors: Sequence[tuple[str, Tensor]], into: Tensor) -> Tensor:
    """Copies tensors one after the other.

    Args:
        tensors: Of one type, so that each begins where its type may.
        into: uint8, at least `flat_size(tensors)` long, on any device.

    Returns:
        The part of `into` that was filled.
    """
    start = 0
    for _, tensor in tensors:
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
        into[start : start + data.numel()].copy_(data)
        start += data.numel()
    return into[:start]


def layout(tensors: Sequence[tuple[str, Tensor]]) -> list[SimpleNamespace]:
    """Where each tensor lies; plain namespaces, which the server reads like its own class."""
    described, start = [], 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        described.append(
            SimpleNamespace(
                name=name,
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                start_idx=start,
                end_idx=start + size,
                numel=size,
            )
        )
        start += size
    return described
