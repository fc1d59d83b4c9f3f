"""The environment contract: text in, text out, a reward at every step, and an ending that says what it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import gymnasium

from envgym.errors import RewardError
from envgym.spaces import TextSpace
from envgym.types import TruncationReason

if TYPE_CHECKING:
    import numpy as np

    from envgym.player import Player


class Step(NamedTuple):
    """What `TextEnv.step` returns, in Gymnasium's order.

    Build one with `Step.running`, `Step.terminal` or `Step.truncation`: they make an ending without its kind, or a
    reward that contradicts its components, impossible to write.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @classmethod
    def running(
        cls,
        observation: str,
        reward: float | Mapping[str, float] = 0.0,
        *,
        role: str = "user",
        action_error: str | None = None,
        **info: Any,
    ) -> Step:
        """The episode goes on.

        Args:
            observation: What the policy sees next.
            reward: Reward of this step: a number, or named components whose sum it is.
            role: Whose message the observation is: "user" or "tool".
            action_error: What was wrong with the action, if anything.
            info: Further entries for `info`; JSON-serialisable.

        Raises:
            RewardError: The reward or a component is not a finite number.
            ValueError: `role` is neither "user" nor "tool".
        """
        total = _reward_of(reward, role, action_error, info)
        return _new(cls, (observation, total, False, False, info))

    @classmethod
    def terminal(
        cls,
        observation: str,
        reward: float | Mapping[str, float] = 0.0,
        *,
        success: bool | None = None,
        role: str = "user",
        action_error: str | None = None,
        **info: Any,
    ) -> Step:
        """The task itself has ended (solved, lost, out of guesses). The value of the state after it is zero.

        Args:
            success: Whether the task was solved; None where there is no such notion.

        The other arguments and errors are those of `Step.running`.
        """
        if success is not None:
            info["success"] = bool(success)
        total = _reward_of(reward, role, action_error, info)
        return _new(cls, (observation, total, True, False, info))

    @classmethod
    def truncation(
        cls,
        observation: str,
        reward: float | Mapping[str, float] = 0.0,
        *,
        reason: TruncationReason | str = TruncationReason.ENVIRONMENT,
        success: bool | None = None,
        role: str = "user",
        action_error: str | None = None,
        **info: Any,
    ) -> Step:
        """The episode is cut although the task goes on. The value of the state after it is bootstrapped.

        Args:
            reason: Why; one of `TruncationReason`.
            success: Whether the task counts as solved so far; None where there is no such notion.

        The other arguments and errors are those of `Step.running`; an unknown reason is a ValueError.
        """
        info["truncation_reason"] = TruncationReason(reason).value
        if success is not None:
            info["success"] = bool(success)
        total = _reward_of(reward, role, action_error, info)
        return _new(cls, (observation, total, False, True, info))


_new = tuple.__new__
"""Makes the named tuple from its fields at half the cost of calling the class."""


def _reward_of(reward: float | Mapping[str, float], role: str, action_error: str | None, info: dict[str, Any]) -> float:
    """Puts what every step reports into `info` and returns the scalar reward."""
    components: dict[str, float] = {}
    try:
        if isinstance(reward, dict) or isinstance(reward, Mapping):  # noqa: SIM101 - the first is fast, and usual
            for name, value in reward.items():
                components[str(name)] = float(value)
            total = math.fsum(components.values())
        elif total := float(reward):
            components["reward"] = total
    except OverflowError:  # beyond the largest float
        total = math.nan
    if not math.isfinite(total):
        raise RewardError(f"a reward must be a finite number, got {reward!r}")
    if role != "user" and role != "tool":
        raise ValueError(f"role must be 'user' or 'tool', got {role!r}")
    info["reward_components"] = components
    info["role"] = role
    if action_error is not None:
        info["action_error"] = action_error
    return total


class TextEnv(gymnasium.Env[str, str]):
    """Base class of every environment: observations and actions are text.

    Subclasses implement `reset(*, seed=None, options=None) -> (observation, info)`, calling `super().reset(seed=seed)`
    first, and `step(action) -> Step`. All randomness comes from `self.np_random`. An action that makes no sense is the
    policy's mistake: answer it with an observation and `action_error`, never with an exception.

    Class attributes:
        system_prompt: Instructions shown to the policy before the first observation.
        tools: Tools the policy may call, as JSON function schemas (see `envgym.tools`).
        max_turns: Turns after which the episode is cut, unless the registration says otherwise; None is no limit.
        terminal_limits: Limits that belong to the task: reaching one terminates the episode instead of truncating it.
        reports_success: Whether there is such a thing as success here. True: an episode that ends without reporting it
            has not succeeded. False: no episode is judged. None: what an episode does not report is not known.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - no ClassVar in Gymnasium either
    system_prompt: ClassVar[str] = ""
    tools: ClassVar[tuple[Any, ...]] = ()
    max_turns: ClassVar[int | None] = None
    terminal_limits: ClassVar[frozenset[TruncationReason]] = frozenset()
    reports_success: ClassVar[bool | None] = None

    observation_space: gymnasium.Space[str] = TextSpace()
    action_space: gymnasium.Space[str] = TextSpace()

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Executes one message of the policy.

        Args:
            action: Text of the message, without template tokens. Any string is legal.

        Returns:
            `Step(observation, reward, terminated, truncated, info)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement step")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode. Subclasses call `super().reset(seed=seed)` and return the first observation and info."""
        super().reset(seed=seed)
        return "", {}

    def solver(self) -> Player | None:
        """A scripted player that solves this environment, for checks and upper bounds; None where there is none."""
        return None

    def demonstrator(self, rng: np.random.Generator) -> Player | None:
        """A clumsy scripted player whose play warms a policy up; None where there is none.

        Args:
            rng: Source of its mistakes.
        """
        return None


def success_at_end(env: gymnasium.Env[str, str], info: Mapping[str, Any]) -> bool | None:
    """Whether an episode that has ended succeeded, as `TextEnv.reports_success` has it.

    Args:
        env: The environment, in wrappers or not.
        info: That of the last step or, where there was none, of the reset.

    Returns:
        None where the environment has no notion of success, or may have one and has said nothing.
    """
    reports, said = getattr(env.unwrapped, "reports_success", None), info.get("success")
    if reports is False or (reports is None and said is None):
        return None
    return bool(said)


def env_id_of(env: gymnasium.Env[str, str]) -> str:
    """Registered id of an environment; the name of its class where it is not registered."""
    spec = env.unwrapped.spec
    return type(env.unwrapped).__name__ if spec is None else spec.id


def ending_fields(env: gymnasium.Env[str, str], step: Step) -> dict[str, Any]:
    """The fields of the record of an episode that its last step decides.

    Raises:
        ValueError: The step truncates and does not say why, or something in `info` cannot be written down.
    """
    if not step.terminated and "truncation_reason" not in step.info:
        raise ValueError("the environment truncated without info['truncation_reason']; return Step.truncation(...)")
    return {
        "terminated": bool(step.terminated),
        "truncated": not step.terminated,
        "truncation_reason": None if step.terminated else TruncationReason(step.info["truncation_reason"]),
        "final_observation": step.observation,
        "final_role": step.info.get("role", "user"),
        "success": success_at_end(env, step.info),
        "info": other_info(step.info),
    }


def other_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """What `info` holds beside the entries that have a place of their own in the record.

    Raises:
        ValueError: Something in it cannot be written down.
    """
    placed = ("reward_components", "truncation_reason", "success", "role", "action_error")
    return plain_json({key: value for key, value in info.items() if key not in placed}, "info")


def plain_json(value: dict[str, Any], what: str) -> dict[str, Any]:
    """A copy as JSON knows it, so that the record stays what it is whatever becomes of the original.

    Raises:
        ValueError: Something in it cannot be written down.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"everything in {what} must be JSON-serialisable: {error}") from error
