"""What every limit does when it is reached: the episode is cut, unless the limit belongs to the task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import gymnasium

from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers.step_contract import flags_problem, info_problem
from envgym.wrappers.wrapper import TextWrapper


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
