"""How new weights reach a policy: one receiver interface for the embedded engine and for servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

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

    def receive(self, bucket: Iterable[tuple[str, torch.Tensor]]) -> None:
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
