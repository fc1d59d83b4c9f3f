"""The guard of the contract: what a `reset` and a `step` must return, and what to return instead where they do not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import gymnasium
import numpy as np

from envgym.env import Step, env_id_of
from envgym.errors import ContractError, EpisodeOrderError, RewardError
from envgym.wrappers.wrapper import STEP_FORM, TextWrapper, as_step

REWARD_TOLERANCE = 1e-6
"""Largest difference between a reward and the sum of its components."""

_ROLES = ("user", "tool")
_FLAGS = (bool, np.bool_)
_VERDICTS = frozenset({type(None), bool, np.bool_})


def reset_problem(result: Any) -> str | None:
    """What is wrong with the result of `reset`, if anything: `(observation, info)` is a text and a dict."""
    return reset_form_problem(result) or observation_problem(result[0]) or info_problem(result[1])


def reset_form_problem(result: Any) -> str | None:
    """What is wrong with the form of the result of `reset`: it is a tuple of two."""
    if not isinstance(result, tuple) or len(result) != 2:
        return f"reset returned {_shown(result)}; return (observation, info)"
    return None


def step_problem(step: Step) -> str | None:
    """What is wrong with the types of a step, its reward left aside, if anything."""
    return observation_problem(step.observation) or flags_problem(step) or info_problem(step.info)


def observation_problem(observation: Any) -> str | None:
    """What is wrong with an observation: it is a string that UTF-8 can encode."""
    if not isinstance(observation, str):
        return f"the observation is {_shown(observation)}; it must be a string, at the end of an episode too"
    return _encoding_problem("the observation", observation)


def flags_problem(step: Step) -> str | None:
    """What is wrong with `terminated` and `truncated`: they are booleans, Python's or NumPy's."""
    for name, flag in (("terminated", step.terminated), ("truncated", step.truncated)):
        if not isinstance(flag, _FLAGS):
            return f"{name} is {_shown(flag)}; it must be True or False. A step is {STEP_FORM}"
    return None


def info_problem(info: Any) -> str | None:
    """What is wrong with `info`, or with an entry of it that the library reads."""
    if not isinstance(info, dict):
        return f"info is {_shown(info)}; it must be a dict, empty where there is nothing to say"
    if "role" in info and info["role"] not in _ROLES:
        return f"info['role'] is {_shown(info['role'])}; it must be 'user' or 'tool'"
    error = info.get("action_error")
    if error is not None and not isinstance(error, str):
        return (
            f"info['action_error'] is {_shown(error)}; say in a string what was wrong with the action, or leave it out"
        )
    success = info.get("success")
    if success is not None and not isinstance(success, _FLAGS):
        return f"info['success'] is {_shown(success)}; it must be True or False, or None where there is no such notion"
    return None if error is None else _encoding_problem("info['action_error']", error)


def reward_problem(step: Step) -> str | None:
    """What is wrong with the reward of a step, if anything: it is a finite number, the sum of its components."""
    return number_problem(step.reward) or components_problem(step)


def number_problem(reward: Any) -> str | None:
    """What is wrong with a reward by itself: it is a finite number."""
    if not isinstance(reward, Real):
        return f"the reward is {_shown(reward)}; it must be a number"
    if not _is_finite(reward):
        return f"a reward must be a finite number, got {_shown(reward)}"
    return None


def components_problem(step: Step) -> str | None:
    """What is wrong with the components of a reward that is a finite number: they are numbers that sum to it."""
    components = step.info.get("reward_components")
    if components is None:
        return None
    if not isinstance(components, Mapping):
        return f"info['reward_components'] is {_shown(components)}; it must be a dict of numbers by name"
    for name, value in components.items():
        if not isinstance(name, str):
            return f"info['reward_components'] has the key {_shown(name)}; the name of a component is a string"
        if not isinstance(value, Real):
            return f"the reward component {name!r} is {_shown(value)}; it must be a number"
        if problem := _encoding_problem("the name of a reward component", name):
            return problem
    total = _sum(components.values())
    if abs(total - float(step.reward)) <= REWARD_TOLERANCE:  # false where the sum is not finite
        return None
    return f"the reward components {_shortened(str(dict(components)))} sum to {total}, but the reward is {step.reward}"


def components_of(step: Step) -> Mapping[str, float]:
    """The components of a reward by name; one without any counts as one component named "reward"."""
    components = step.info.get("reward_components")
    if components is None:
        return {"reward": float(step.reward)} if step.reward else {}
    return components


def reward_fields(step: Step) -> dict[str, Any]:
    """The fields of the record of a turn that its step decides."""
    return {
        "reward": float(step.reward),
        "reward_components": {str(name): float(value) for name, value in components_of(step).items()},
        "action_error": step.info.get("action_error"),
    }


def _sum(values: Iterable[Any]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest float, or both infinities
        return math.nan


def _is_finite(number: Real) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int beyond the largest float
        return False


def _encoding_problem(what: str, text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = text[error.start]
        return (
            f"{what} holds {bad!r} at character {error.start}, half of a surrogate pair, which UTF-8 cannot encode; "
            "decode bytes with errors='replace', and answer an action that holds it with action_error"
        )
    return None


def _shown(value: Any) -> str:
    return f"{_shortened(repr(value))} ({type(value).__name__})"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


class EpisodeGuard(TextWrapper):
    """Raises where an environment or its caller breaks the contract, and changes nothing else.

    Observations are strings that UTF-8 can encode, `terminated` and `truncated` are booleans, a reward is a finite
    number and the sum of its components, and `info` is a dict whose "role" is "user" or "tool", whose "action_error" is
    a string and whose "success" is a boolean, where they are there. NumPy's booleans and numbers are as good as
    Python's.

    Args:
        env: The environment.
        tags: Labels of the registration; kept here so that the `EnvSpec` carries them.
    """

    def __init__(self, env: gymnasium.Env[str, str], tags: Iterable[str] = ()) -> None:
        self.tags = tuple(tags)
        super().__init__(env, tags=list(self.tags))
        self._running = False
        self._ended = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Resets the environment.

        Raises:
            ContractError: The observation or `info` is not what it must be.
        """
        self._running = self._ended = False
        result = self.env.reset(seed=seed, options=options)
        if problem := reset_problem(result):
            raise ContractError(f"{self._name}: {problem}")
        self._running = True
        return result

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Steps the environment.

        Raises:
            EpisodeOrderError: There is no running episode.
            ContractError: The observation, a flag or `info` is not what it must be.
            RewardError: The reward is no finite number, or its components do not sum to it.
        """
        if not self._running:
            when = "after the episode had ended" if self._ended else "before reset"
            raise EpisodeOrderError(f"{self._name}: step was called {when}; call reset first")
        try:
            step = as_step(self.env.step(action))
        except ContractError as error:
            raise ContractError(f"{self._name}: {error}") from error
        observation, reward, terminated, truncated, info = step
        plain = (
            type(observation) is str
            and observation.isascii()
            and type(reward) is float
            and type(terminated) is bool
            and type(truncated) is bool
            and type(info) is dict
            and info.get("role", "user") in _ROLES
            and info.get("action_error") is None
            and type(info.get("success")) in _VERDICTS
        )
        # Most steps are plain; the others get a closer look, which finds what is wrong with them, if anything.
        if not plain and (problem := step_problem(step)):
            raise ContractError(f"{self._name}: {problem}")
        if terminated or truncated:
            self._running, self._ended = False, True
        if not (plain and _adds_up(reward, info.get("reward_components"))) and (problem := reward_problem(step)):
            raise RewardError(f"{self._name}: {problem}")
        return step

    @property
    def _name(self) -> str:
        return env_id_of(self.env)


def _adds_up(reward: float, components: Any) -> bool:
    """Whether a reward is that of its components, whose names are plain; where it is not, a closer look is due."""
    if components is None:
        return math.isfinite(reward)
    try:
        for name in components:
            if type(name) is not str or not name.isascii():
                return False
        return abs(math.fsum(components.values()) - reward) <= REWARD_TOLERANCE
    except Exception:  # no mapping, a value that is no number, or a sum beyond the largest float
        return False
