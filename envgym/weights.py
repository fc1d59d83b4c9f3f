"""The weights of a sharded module on their way to what samples, a bucket at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from envgym.errors import WeightSyncError

BUCKET_BYTES = 256 * 2**20
"""Most bytes gathered at once, unless one parameter alone is larger."""

_log = logging.getLogger(__name__)

Shapes = Mapping[str, tuple[int, ...]]
"""Hugging Face name and whole shape of every parameter of an update."""


class WeightReceiver(Protocol):
    """Takes a full set of weights in named buckets.

    Order: `check_parameters(shapes)`, `begin_update()`, any number of `receive(bucket)`, `end_update(version)`. Between
    begin and end nothing is sampled with a mixture of weights. A receiver checks names and shapes and that every
    parameter arrived exactly once. After an error it either goes on with its old weights or is out of use; the message
    says which.
    """

    def check_parameters(self, shapes: Shapes) -> None:
        """Compares what an update would bring with what is held; changes nothing.

        Raises:
            WeightSyncError: A name is unknown or missing, or a shape differs.
        """

    def begin_update(self) -> None:
        """Stops sampling, or prepares to, and gets ready for weights.

        Raises:
            WeightSyncError: An update is already under way, or the receiver cannot take one.
        """

    def receive(self, bucket: Iterable[tuple[str, Tensor]]) -> None:
        """Takes some parameters by their Hugging Face names; the tensors may be reused by the caller afterwards.

        Raises:
            WeightSyncError: A name is unknown or came twice, a shape differs, or the weights could not be handed on.
        """

    def end_update(self, version: int) -> None:
        """Makes the new weights the ones that sample, as `version`; cached state of the old ones is dropped.

        Raises:
            WeightSyncError: A parameter did not arrive, or what arrived is not what was sent.
        """

    def abort_update(self) -> None:
        """Gives up an update for a reason that lies elsewhere; does nothing when none is under way. Never raises."""


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


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name and whole shape of every parameter of a (sharded) module."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def check_weights(shapes: Shapes, receivers: Sequence[WeightReceiver]) -> None:
    """Asks every receiver of every rank whether parameters fit it; a collective that changes nothing.

    Args:
        shapes: The parameters, under the names the receivers know.
        receivers: Policies of this rank; may be empty.

    Raises:
        WeightSyncError: A receiver of some rank holds other parameters. Raised on every rank.
    """
    _checked(shapes, receivers).agree("The policy cannot be given the weights of the model that is trained")


@torch.no_grad()
def push_weights(
    module: nn.Module, receivers: Sequence[WeightReceiver], *, version: int, max_bytes: int = BUCKET_BYTES
) -> None:
    """Gives every receiver of this rank the present weights of a module; a collective of all ranks.

    All receivers of all ranks are asked first whether the parameters fit them, and nothing changes unless they do. A
    receiver that fails afterwards does not hold up the others: the sync goes on without it, and then every rank raises
    the same error.

    Args:
        module: The model, under the names the receivers know.
        receivers: Policies of this rank; may be empty.
        version: What the new weights are called.
        max_bytes: Size of a bucket.

    Raises:
        WeightSyncError: A receiver of some rank was offered other parameters than it holds, or failed. Raised on every
            rank.
    """
    outcome = _checked(shapes_of(module), receivers)
    outcome.agree(f"Weights of version {version} were not sent")
    try:
        outcome.each(lambda receiver: receiver.begin_update())
        for bucket in weight_buckets(module, max_bytes=max_bytes):
            # Bound at once: the lambda does not outlive the bucket.
            outcome.each(lambda receiver, bucket=bucket: receiver.receive(bucket))  # type: ignore[misc]
        outcome.each(lambda receiver: receiver.end_update(version))
    except BaseException:  # another rank is gone, or this one is being stopped
        for receiver in receivers:
            receiver.abort_update()
        raise
    outcome.agree(f"Weights of version {version} did not reach every policy")


def _checked(shapes: Shapes, receivers: Sequence[WeightReceiver]) -> _Outcome:
    """What the receivers say to parameters."""
    outcome = _Outcome(receivers)
    outcome.each(lambda receiver: receiver.check_parameters(shapes))
    return outcome


class _Outcome:
    """The receivers of this rank that still take part, and what happened to the others."""

    def __init__(self, receivers: Sequence[WeightReceiver]) -> None:
        self.working = list(receivers)
        self.errors: list[Exception] = []

    def each(self, action: Callable[[WeightReceiver], None]) -> None:
        """Does something with every working receiver; one that fails takes part no longer."""
        for receiver in list(self.working):
            try:
                action(receiver)
            except Exception as error:
                self.working.remove(receiver)
                self.errors.append(error)
                receiver.abort_update()

    def agree(self, what: str) -> None:
        """Raises on all ranks if anything failed on any; a collective.

        Raises:
            WeightSyncError: Its message lists the failures of all ranks.
        """
        mine = [str(e) if isinstance(e, WeightSyncError) else f"{type(e).__name__}: {e}" for e in self.errors]
        shared: list[Any] = [mine]
        if dist.is_initialized():
            shared = [None] * dist.get_world_size()
            dist.all_gather_object(shared, mine)
        failures = [
            f"rank {rank}: {failure}" if len(shared) > 1 else failure
            for rank, failed in enumerate(shared)
            for failure in failed
        ]
        if not failures:
            return
        for error in self.errors:
            _log.debug("a weight receiver failed", exc_info=error)
        raise WeightSyncError(f"{what}. " + " ".join(failures)) from (self.errors[0] if self.errors else None)
