"""How new weights reach a policy: one receiver interface for the embedded engine and for servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class WeightReceiver(Protocol):
    """Takes a full set of weights in named buckets.

    Order: `begin_update()`, any number of `receive(bucket)`, `end_update(version)`. Between begin and end the receiver
    samples nothing. A receiver checks names and shapes and that every parameter arrived exactly once.
    """

    def begin_update(self) -> None:
        """Stops sampling and prepares for weights.

        Raises:
            WeightSyncError: An update is already under way.
        """

    def receive(self, bucket: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Takes some parameters by their Hugging Face names; the tensors may be reused by the caller afterwards.

        Raises:
            WeightSyncError: A name is unknown or came twice, or a shape differs.
        """

    def end_update(self, version: int) -> None:
        """Makes the new weights the ones that sample, as `version`; cached state of the old ones is dropped.

        Raises:
            WeightSyncError: A parameter did not arrive.
        """
