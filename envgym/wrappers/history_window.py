"""Observations that carry the last turns with them."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium

from envgym.env import Step
from envgym.wrappers.wrapper import TextWrapper, as_step

_ELISION = " ... "


class HistoryWindow(TextWrapper):
    """Puts the last turns before each observation, so that one message is enough to act on however long the episode is.

    It is for agents whose context does not grow: functions of an observation, and chat endpoints that are sent only the
    latest message. The third observation of an episode, with `num_turns=1`::

        [1 earlier turns left out]
        [observation] higher
        [action] 48
        [now] lower

    The history has at most `max_chars` characters: the oldest turns are left out first, and a turn that alone is too
    long loses its middle. The current observation is always whole. Together they bound the message.

    Under a renderer that appends (see `envgym.rendering`) the text of the past is in the prompt already and would be
    there again with every turn, so leave this wrapper out there. It breaks nothing: an observation, once returned,
    never changes, and what was sampled is repeated as text of the environment, never as tokens of the policy. Scripted
    players that read observations, such as an environment's solver, do not understand it.

    Args:
        env: The environment.
        num_turns: Turns shown at most, >= 1.
        max_chars: Characters of the history at most, >= 64.

    Raises:
        ValueError: An argument is too small.
    """

    def __init__(self, env: gymnasium.Env[str, str], num_turns: int = 4, max_chars: int = 2000) -> None:
        super().__init__(env, num_turns=num_turns, max_chars=max_chars)
        if num_turns < 1:
            raise ValueError(f"num_turns must be at least 1, got {num_turns}")
        if max_chars < 64:
            raise ValueError(f"max_chars must be at least 64, got {max_chars}")
        self.num_turns, self.max_chars = num_turns, max_chars
        self._turn = 0
        self._observation = ""
        self._history: deque[str] = deque(maxlen=num_turns)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._turn = 0
        self._history.clear()
        return self._observation, info

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        self._turn += 1
        self._history.append(f"[observation] {self._observation}\n[action] {action}\n")
        self._observation = step.observation
        return step._replace(observation=f"{self._shown()}[now] {step.observation}")

    def _shown(self) -> str:
        """The history, within its bounds."""
        room = self.max_chars - len(self._left_out(self._turn))
        shown: list[str] = []
        for turn in reversed(self._history):
            if len(turn) > room:
                break
            shown.append(turn)
            room -= len(turn)
        if not shown:
            last, half = self._history[-1], (room - len(_ELISION)) // 2
            shown.append(f"{last[:half]}{_ELISION}{last[-half:]}")
        left_out = self._turn - len(shown)
        return (self._left_out(left_out) if left_out else "") + "".join(reversed(shown))

    @staticmethod
    def _left_out(count: int) -> str:
        return f"[{count} earlier turns left out]\n"
