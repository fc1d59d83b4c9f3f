"""The scripted player of the tau2 environments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from envgym.agent import Player
from envgym.tools import format_call

if TYPE_CHECKING:
    from envgym.environments.tau2.environment import Tau2

FAREWELL = "Is there anything else I can help you with?"


class GoldenPlayer(Player):
    """Tells the facts, makes the golden actions of the task in order, and says goodbye until the user leaves.

    Golden actions of the user (telecom) are asked for by the name of the tool.

    Args:
        env: The environment; its task is read when the first action is due.
    """

    def __init__(self, env: Tau2) -> None:
        self._env = env
        self._plan: Iterator[str] | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self._plan is None:
            self._plan = iter(golden_messages(self._env.episode))
        return next(self._plan, FAREWELL)


def golden_messages(episode: Any) -> list[str]:
    """The messages of an agent that knows the task's golden actions and facts."""
    criteria = episode.task.evaluation_criteria
    messages = []
    if episode.facts:
        messages.append(f"For your information: {'; '.join(episode.facts)}.")
    for action in (criteria and criteria.actions) or []:
        if action.requestor == "user":
            arguments = json.dumps(action.arguments) if action.arguments else ""
            messages.append(f"Please use {action.name}({arguments}).")
        else:
            messages.append(format_call(action.name, action.arguments, "hermes"))
    return messages
