"""Scripted players of BFCL multi-turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envgym.agent import Player
from envgym.environments.bfcl.backend import parameters
from envgym.environments.bfcl.calls import write_calls
from envgym.environments.bfcl.tasks import Task, load_tasks
from envgym.tools import ToolCall

ANSWER = "That is all."
"""A message without a call: it ends the user turn."""


def call_arguments(task: Task, call: ToolCall) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call, those given by position under their names."""
    names = parameters(task.classes, call.name)
    return call.name, {**dict(zip(names, call.positional, strict=False)), **call.arguments}


class Replay(Player):
    """Sends the recorded calls of each user turn in one message, then answers.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self._last_turn = -1

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        task = load_tasks(info["subset"])[info["task"]]
        turn = info["user_turn"]
        calls = task.ground_truth[turn]
        if turn == self._last_turn or not calls:
            return ANSWER
        self._last_turn = turn
        return write_calls([call_arguments(task, call) for call in calls], self.call_format)
