"""The time limit of an episode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium

from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers.limit import Limit
from envgym.wrappers.wrapper import as_function, as_step


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
