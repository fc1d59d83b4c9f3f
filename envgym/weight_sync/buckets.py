"""Streams the weights of a sharded module to receivers, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from envgym.weight_sync.base import WeightReceiver

BUCKET_BYTES = 256 * 2**20
"""Most bytes gathered at once, unless one parameter alone is larger."""


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


@torch.no_grad()
def push_weights(module: nn.Module, receivers: Sequence[WeightReceiver], *, version: int) -> None:
    """Gives every receiver of this rank the present weights of a module; a collective of all ranks.

    Args:
        module: The model, under the names the receivers know.
        receivers: Policies of this rank.
        version: What the new weights are called.

    Raises:
        WeightSyncError: A receiver was offered other parameters than it holds.
    """
    for receiver in receivers:
        receiver.begin_update()
    for bucket in weight_buckets(module):
        for receiver in receivers:
            receiver.receive(bucket)
    for receiver in receivers:
        receiver.end_update(version)
