"""SGLang servers as an engine: started or attached to, sampled from, given weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgym.config import SGLangPolicyConfig
    from envgym.engines.base import Engine, EngineSetup


def make_engine(config: SGLangPolicyConfig, setup: EngineSetup) -> Engine:
    """See `envgym.engines.make_engine`."""
    from envgym.engines.sglang.fleet import SGLangEngine

    return SGLangEngine(config, setup)
