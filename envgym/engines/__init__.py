"""What samples: the embedded engine, and SGLang servers. Imported on first use; the server needs no torch here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envgym.engines.embedded.policy import TorchPolicy
    from envgym.engines.sglang.policy import SGLangPolicy
    from envgym.engines.sglang.server import SGLangServer

__all__ = ["SGLangPolicy", "SGLangServer", "TorchPolicy"]

_PLACES = {"SGLangPolicy": "sglang.policy", "SGLangServer": "sglang.server", "TorchPolicy": "embedded.policy"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
