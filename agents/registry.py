"""Agents by name: the built-in ones, those of installed packages, and those loaded from a folder."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgym.agent import Agent
from envgym.errors import EnvGymError, UnknownIdError, nearest

ENTRY_POINT_GROUP = "envgym.agents"

BUILTIN = {
    "random": "envgym.agents.random_agent:RandomAgent",
    "solver": "envgym.agents.scripted:SolverAgent",
    "demonstrator": "envgym.agents.scripted:DemonstratorAgent",
    "human": "envgym.agents.human:HumanAgent",
    "openai": "envgym.agents.openai_chat:OpenAIChatAgent",
}
"""Name of an agent and where its factory is; imported when first made."""

ADDRESSES = {"openai:": "envgym.agents.openai_chat:OpenAIChatAgent"}
"""Beginning of a name, and where the factory is that makes an agent from what follows it."""

FOLDERS = {
    "metrics.jsonl": "envgym.training.trained:agent_from_run",
    "tokenizer.json": "envgym.training.trained:agent_from_model",
    "tokenizer.model": "envgym.training.trained:agent_from_model",
    "vocab.json": "envgym.training.trained:agent_from_model",
}
"""File that marks a kind of folder, and where the factory is that makes an agent from the folder's path."""

MISSING_PARTS = "envgym.model_folder:missing_parts"
"""Where the function is that tells what a folder lacks of a model."""


def list_agents() -> list[str]:
    """Names that `make_agent` knows, in alphabetical order. Loads none of them."""
    return sorted({*BUILTIN, *importlib.metadata.entry_points(group=ENTRY_POINT_GROUP).names})


def make_agent(name_or_path: str | Path, **kwargs: Any) -> Agent:
    """Makes an agent.

    Args:
        name_or_path: A name of `list_agents`, "openai:MODEL" or "openai:MODEL@BASE_URL" for a chat endpoint, or a
            folder that holds a run or a model.
        kwargs: Arguments of the agent's constructor.

    Raises:
        UnknownIdError: No such agent; the message suggests the nearest.
        ValueError: The folder holds nothing an agent can be made from, or the constructor rejects an argument.
        EnvGymError: The package that brings the agent cannot be loaded.
    """
    name = str(name_or_path)
    if name in BUILTIN:
        return _call(name, _load(BUILTIN[name]), **kwargs)
    for beginning, location in ADDRESSES.items():
        if name.startswith(beginning):
            return _call(name, _load(location), name.removeprefix(beginning), **kwargs)
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        package = entry_point.dist.name if entry_point.dist else entry_point.value
        try:
            factory = entry_point.load()
        except Exception as error:
            raise EnvGymError(
                f"agent '{name}' of package '{package}' could not be loaded ({type(error).__name__}: {error}); "
                "repair or uninstall the package"
            ) from error
        return _call(name, factory, **kwargs)
    folder = Path(name_or_path)
    if folder.is_dir():
        for mark, location in FOLDERS.items():
            if (folder / mark).exists():
                return _call(name, _load(location), folder, **kwargs)
        lacking = ", no ".join(_load(MISSING_PARTS)(folder))
        raise ValueError(
            f"no agent can be made from folder '{folder}': it is neither a run (it has no metrics.jsonl) nor a whole "
            f"model folder (it has no {lacking}); copy what is missing into it, or name another folder"
        )
    if folder.exists():
        raise ValueError(f"no agent can be made from the file '{folder}'; name the run or model folder")
    suggestion = nearest(name, list_agents())
    hint = f"Did you mean '{suggestion}'?" if suggestion else f"Known are: {', '.join(list_agents())}, or a folder."
    raise UnknownIdError(f"Unknown agent '{name}'. {hint}")


def _call(name: str, factory: Callable[..., Agent], /, *args: Any, **kwargs: Any) -> Agent:
    try:
        inspect.signature(factory).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"agent '{name}' cannot be made with these arguments: {error}") from error
    return factory(*args, **kwargs)


def _load(location: str) -> Callable[..., Any]:
    module, _, attribute = location.partition(":")
    return getattr(importlib.import_module(module), attribute)
