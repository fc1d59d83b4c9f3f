"""The engines that sample: one folder each, imported on first use; the servers' part needs no torch to start one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from envgym.engines.base import Engine, EngineSetup, Policy

if TYPE_CHECKING:
    from envgym.engines.embedded.policy import TorchPolicy
    from envgym.engines.sglang.policy import SGLangPolicy
    from envgym.engines.sglang.server import SGLangServer

__all__ = ["Engine", "EngineSetup", "Policy", "SGLangPolicy", "SGLangServer", "TorchPolicy", "make_engine"]

_PLACES = {"SGLangPolicy": "sglang.policy", "SGLangServer": "sglang.server", "TorchPolicy": "embedded.policy"}


def make_engine(config: Any, setup: EngineSetup) -> Engine:
    """The engine of a run; a collective of all ranks.

    Args:
        config: The section `policy` of the configuration. Its `kind` names the folder below `envgym/engines`, whose
            own `make_engine` is called with the same arguments.
        setup: What else the engine is made from.
    """
    return importlib.import_module(f"{__name__}.{config.kind}").make_engine(config, setup)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
