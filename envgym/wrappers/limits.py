"""The limits of an episode: turns, seconds, tokens. The episode is cut, unless the limit belongs to the task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import gymnasium

from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers.guard import flags_problem, info_problem
from envgym.wrappers.wrapper import TextWrapper, as_function, as_step


class Limit(TextWrapper):
    """Base class of the limits. They act between turns: the last action is executed and rewarded.

    Class attributes:
        reason: Why the episode is cut.

    Args:
        env: The environment.
        terminal_limits: Limits that belong to the task; None takes those of the limit below this one or, where there is
            none, the environment's class attribute.
        recorded: See `TextWrapper`.

    Raises:
        ValueError: One of `terminal_limits` is not a `TruncationReason`.
    """

    reason: ClassVar[TruncationReason]

    def __init__(
        self, env: gymnasium.Env[str, str], terminal_limits: Iterable[TruncationReason | str] | None, **recorded: Any
    ) -> None:
        limits = None if terminal_limits is None else [TruncationReason(limit).value for limit in terminal_limits]
        super().__init__(env, **recorded, terminal_limits=limits)
        if terminal_limits is None:
            below = env.get_wrapper_attr("terminal_limits") if env.has_wrapper_attr("terminal_limits") else ()
            limits = list(below)
        self.terminal_limits = frozenset(TruncationReason(limit) for limit in limits or ())

    def cut(self, step: Step) -> Step:
        """The step at which the limit is reached. An ending that the episode already has is left as it is."""
        if flags_problem(step) or info_problem(step.info):  # the guard, further out, says what is wrong
            return step
        if step.terminated or step.truncated:
            return step
        if self.reason in self.terminal_limits:
            return step._replace(terminated=True)
        return step._replace(truncated=True, info={**step.info, "truncation_reason": self.reason.value})


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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        self.turn += 1
        return self.cut(step) if self.turn == self.max_turns else step


class TimeLimit(Limit):
    """Ends an episode after a number of seconds on the clock, counted from the return of reset; thinking counts too.

    The clock is read after each step: no step is interrupted, and the last action is executed and rewarded. The episode
    is then truncated with the reason `time_limit`, or terminated when that limit belongs to the task. An ending of the
    environment's own on the same step is passed on as it is. The same seed and actions may end differently: this is for
    keeping a real schedule, not for a task.

    Args:
        env: The environment.
        limit_s: Seconds of an episode, > 0.
        clock: Gives the present time in seconds and never goes back; `time.monotonic` by default. A function, or its
            name `"module:function"`, which lets the `EnvSpec` be written as JSON.
        terminal_limits: Limits that belong to the task; see `Limit`.

    Raises:
        ValueError: `limit_s` is not positive, there is no such function, or a limit is not a `TruncationReason`.
    """

    reason = TruncationReason.TIME_LIMIT

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        limit_s: float,
        clock: str | Callable[[], float] | None = None,
        terminal_limits: Iterable[TruncationReason | str] | None = None,
    ) -> None:
        super().__init__(env, terminal_limits, limit_s=limit_s, clock=clock)
        if not limit_s > 0:
            raise ValueError(f"limit_s must be a positive number of seconds, got {limit_s}")
        self.limit_s = limit_s
        self._clock = time.monotonic if clock is None else as_function(clock)
        self._started = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        self._started = self._clock()
        return result

    def step(self, action: str) -> Step:  # type: ignore[override]
        step = as_step(self.env.step(action))
        return self.cut(step) if self._clock() - self._started >= self.limit_s else step


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
