"""The turn limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium

from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers.limit import Limit
from envgym.wrappers.wrapper import as_step


class MaxTurns(Limit):
    """Ends an episode after a number of turns. Every step is a turn, tool calls and malformed actions too.

    The action of the last turn is executed and rewarded. The episode is then truncated with the reason `max_turns`, or
    terminated when the limit belongs to the task (`terminal_limits`). An ending of the environment's own on the same
    step is passed on as it is.

    Args:
        env: The environment.
        max_turns: The limit, >= 1; None takes the environment's class attribute, where None is no limit.
        terminal_limits: Limits that belong to the task; see `Limit`.

    Raises:
        ValueError: `max_turns` is below 1, or a limit is not a `TruncationReason`.
    """

    reason = TruncationReason.MAX_TURNS

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        max_turns: int | None = None,
        terminal_limits: Iterable[TruncationReason | str] | None = None,
    ) -> None:
        super().__init__(env, terminal_limits, max_turns=max_turns)
        if max_turns is None:
            max_turns = getattr(env.unwrapped, "max_turns", None)
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, got {max_turns}")
        self.max_turns = max_turns
        self.turn = 0

    @property
    def limits_nothing(self) -> bool:
        """Whether an episode is the same without this wrapper: no turn limit, no terminal limits but the class's."""
        declared = getattr(self.unwrapped, "terminal_limits", ())
        return self.max_turns is None and self.terminal_limits == frozenset(declared)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        self.turn += 1
        return self.cut(step) if self.turn == self.max_turns else step
