"""The weights of a sharded module on their way to what samples, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

BUCKET_BYTES = 256 * 2**20
"""Most bytes gathered at once, unless one parameter alone is larger."""

Shapes = Mapping[str, tuple[int, ...]]
"""Hugging Face name and whole shape of every parameter of an update."""


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name and whole shape of every parameter of a (sharded) module."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def weight_buckets(module: nn.Module, *, max_bytes: int = BUCKET_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
    """The whole parameters of a (sharded) module by name, in buckets; a collective of all ranks.

    At no time is more than one bucket gathered. Tied parameters come once, under their first name.

    Args:
        module: For example a Hugging Face model whose parameters are sharded by FSDP2.
        max_bytes: Size of a bucket.
    """
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, parameter in module.named_parameters():
        nbytes = parameter.numel() * parameter.element_size()
        if bucket and size + nbytes > max_bytes:
            yield bucket
            bucket, size = [], 0
        tensor = parameter.detach()
        bucket.append((name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor))
        size += nbytes
    if bucket:
        yield bucket
