"""What an evaluation's results depend on beside seed and attempt: the agent, and each environment as it is played."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from envgym.agent import Agent

_WEIGHTS = ("config.json", "tokenizer.json", "*.safetensors")
_SECRETS = frozenset({"api_key"})


def agent_identity(agent: Agent, kwargs: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """What tells an agent from others, as JSON values.

    An agent with a method `settings` says so itself; of any other, the class, the name and the arguments are known.

    Args:
        agent: The agent.
        kwargs: Arguments it was made with, if it was made by name.
        folder: The run or model folder it was made from; what the model files hold becomes part of the identity.
    """
    settings = getattr(agent, "settings", None)
    known = settings() if callable(settings) else {k: v for k, v in kwargs.items() if k not in _SECRETS}
    identity = {"name": agent.name, "class": _plain(type(agent)), "settings": _plain(known)}
    return identity if folder is None else {**identity, "model": _fingerprint(folder)}


def env_identity(spec: EnvSpec, max_turns: int | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """How an environment is registered and limited, as JSON values.

    Args:
        spec: The registration.
        max_turns: Turn limit in place of the registered one.
        kwargs: Arguments of the constructor, over the registered ones.
    """
    limits: dict[str, Any] = {}
    for wrapper in spec.additional_wrappers:
        limits |= {name: _plain(value) for name, value in (wrapper.kwargs or {}).items() if name != "tags"}
    if max_turns is not None:
        limits["max_turns"] = max_turns
    return {"entry_point": _plain(spec.entry_point), "kwargs": _plain({**spec.kwargs, **kwargs}), **limits}


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Where two identities differ, one phrase for each place: `agent.name was 'solver' and is 'random'`."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        found = []
        for key in sorted({*before, *now}):
            inner = f"{where}.{key}" if where else str(key)
            found += differences(before.get(key), now.get(key), inner)
        return found
    return [] if before == now else [f"{where} was {before!r} and is {now!r}"]


def _plain(value: Any) -> Any:
    """A JSON value that is the same in another process: functions and classes by name, other objects by class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(str(inner) for inner in value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _fingerprint(folder: Path) -> str:
    """Digest of the model files of a run (below `model/`) or model folder."""
    digest = hashlib.sha256()
    for pattern in _WEIGHTS:
        for path in sorted([*folder.glob(pattern), *folder.glob(f"model/{pattern}")]):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
