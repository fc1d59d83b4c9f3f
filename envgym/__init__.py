"""envgym: multi-turn text environments for language-model agents, and the learner that trains them.

Importing this package registers the built-in environments with Gymnasium and loads neither torch nor any environment;
`train`, `TrainConfig` and what else needs torch are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envgym.env import Step, TextEnv
from envgym.registry import list_environments, make, register, register_builtin, spec
from envgym.types import Trajectory, TruncationReason, Turn

if TYPE_CHECKING:
    from envgym.checking import check_env
    from envgym.config import TrainConfig
    from envgym.evaluation.runner import evaluate
    from envgym.rollout.episode import run_episode
    from envgym.training import train
    from envgym.vector import make_vec

__version__ = "0.1.0"

__all__ = [
    "Step",
    "TextEnv",
    "TrainConfig",
    "Trajectory",
    "TruncationReason",
    "Turn",
    "check_env",
    "evaluate",
    "list_environments",
    "make",
    "make_vec",
    "register",
    "run_episode",
    "spec",
    "train",
]

_ON_FIRST_USE = {
    "check_env": "envgym.checking",
    "evaluate": "envgym.evaluation.runner",
    "make_vec": "envgym.vector",
    "run_episode": "envgym.rollout.episode",
    "train": "envgym.training",
    "TrainConfig": "envgym.config",
}

register_builtin()


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'envgym' has no attribute {name!r}")
    value = getattr(import_module(_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
