"""What is wrong with the result of a `reset` or a `step`, in words that say what to return instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from envgym.env import Step
from envgym.wrappers.wrapper import STEP_FORM

REWARD_TOLERANCE = 1e-6
"""Largest difference between a reward and the sum of its components."""

_FLAGS = (bool, np.bool_)


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
    if "role" in info and info["role"] not in ("user", "tool"):
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
