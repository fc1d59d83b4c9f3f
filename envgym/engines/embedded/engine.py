"""The embedded engine: a `TorchPolicy` of each rank, given the learner's weights in the same process."""

from __future__ import annotations

import torch
from torch import nn

from envgym.engines.base import Engine, EngineSetup
from envgym.engines.embedded.policy import TorchPolicy
from envgym.weights import weight_buckets


class EmbeddedEngine(Engine):
    """What `policy.kind = "embedded"` means on one rank.

    Args:
        setup: What the policy is made from.
    """

    def __init__(self, setup: EngineSetup) -> None:
        self.policy: TorchPolicy = TorchPolicy(
            setup.model_dir,
            max_concurrency=setup.concurrency,
            device=setup.device,
            dtype=getattr(torch, setup.dtype),
            deterministic=setup.deterministic,
        )

    def sync(self, module: nn.Module, version: int) -> None:
        """Copies the weights; see `Engine.sync`."""
        parameters = (parameter for bucket in weight_buckets(module) for parameter in bucket)
        self.policy.load_weights(parameters, version)
