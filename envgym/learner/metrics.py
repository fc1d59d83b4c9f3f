"""Metrics that add up: sums and maxima over micro-batches and ranks, divided only at the end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class MetricSums:
    """Accumulates sums (and, for keys that end in `_max`, maxima) and reduces them over all ranks.

    Every rank must add the same keys.

    Args:
        device: Where the backend communicates from.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._totals: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Adds the metrics of one micro-batch."""
        for name, value in metrics.items():
            value = torch.as_tensor(value, dtype=torch.float64, device=self._device).detach()
            before = self._totals.get(name)
            if before is None:
                self._totals[name] = value.clone()
            else:
                self._totals[name] = torch.maximum(before, value) if name.endswith("_max") else before + value

    def totals(self) -> dict[str, float]:
        """What was added on this rank alone."""
        return {name: float(value) for name, value in self._totals.items()}

    def reduce(self) -> dict[str, float]:
        """The totals over all ranks; a collective."""
        reduced: dict[str, float] = {}
        for maxima, op in ((False, dist.ReduceOp.SUM), (True, dist.ReduceOp.MAX)):
            names = sorted(name for name in self._totals if name.endswith("_max") == maxima)
            if names:
                totals = torch.stack([self._totals[name] for name in names])
                dist.all_reduce(totals, op=op)
                reduced.update(zip(names, totals.tolist(), strict=True))
        return reduced


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum over all ranks, as a new tensor."""
    total = values.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return total
