"""The embedded engine: generation with a cache over slots, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgym.config import EmbeddedPolicyConfig
    from envgym.engines.base import Engine, EngineSetup


def make_engine(config: EmbeddedPolicyConfig, setup: EngineSetup) -> Engine:
    """See `envgym.engines.make_engine`."""
    from envgym.engines.embedded.engine import EmbeddedEngine

    return EmbeddedEngine(setup)
