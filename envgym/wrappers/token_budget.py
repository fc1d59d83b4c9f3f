"""The token budget of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium

from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers.limit import Limit
from envgym.wrappers.wrapper import as_function, as_step


def count_bytes(text: str) -> int:
    """Number of UTF-8 bytes of a text: what a byte-level tokenizer makes of it, and a bound for most others."""
    return len(text.encode("utf-8", "surrogatepass"))


class TokenBudget(Limit):
    """Ends an episode once its observations and actions have used up a number of tokens.

    The first observation counts, and so do each action and the observation that answers it; the system prompt and the
    chat template do not. The action that reaches the budget is executed and rewarded, so an episode has at least one
    turn and may go over by one. It is then truncated with the reason `token_budget`, or terminated when that limit
    belongs to the task. An ending of the environment's own on the same step is passed on as it is.

    Args:
        env: The environment.
        budget: Tokens of an episode, >= 1.
        count_tokens: Gives the number of tokens of a text; UTF-8 bytes by default. A function, or its name
            `"module:function"`, which lets the `EnvSpec` be written as JSON.
        terminal_limits: Limits that belong to the task; see `Limit`.

    Raises:
        ValueError: `budget` is below 1, there is no such function, or a limit is not a `TruncationReason`.
    """

    reason = TruncationReason.TOKEN_BUDGET

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        budget: int,
        count_tokens: str | Callable[[str], int] | None = None,
        terminal_limits: Iterable[TruncationReason | str] | None = None,
    ) -> None:
        super().__init__(env, terminal_limits, budget=budget, count_tokens=count_tokens)
        if budget < 1:
            raise ValueError(f"budget must be at least 1 token, got {budget}")
        self.budget = budget
        self.num_tokens = 0
        self._count = count_bytes if count_tokens is None else as_function(count_tokens)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.num_tokens = self._count(observation)
        return observation, info

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        self.num_tokens += self._count(action) + self._count(step.observation)
        return self.cut(step) if self.num_tokens >= self.budget else step
