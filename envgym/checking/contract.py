"""Checks of what `step` and `reset` return, of closing, and of Gymnasium's own contract."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from envgym.checking.subject import Subject, has_ended, steps
from envgym.env import Step
from envgym.types import TruncationReason
from envgym.wrappers import as_step
from envgym.wrappers.guard import components_problem, flags_problem, info_problem, number_problem, observation_problem

SEEDS = range(21, 29)


def gymnasium_contract(subject: Subject) -> Iterator[str]:
    """Gymnasium's own checker passes, without a warning."""
    env = subject.fresh()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check_env(env, skip_render_check=env.spec is None)
        except Exception as error:
            yield f"gymnasium.utils.env_checker.check_env raised {type(error).__name__}: {error}"
    env.close()
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        yield f"gymnasium.utils.env_checker.check_env warned: {message}"


def _of_steps(problem: Callable[[Step], str | None]) -> Callable[[Subject], Iterator[str]]:
    """A check that asks what is wrong with single steps, and tells the first problem.

    They are those of some episodes of random actions and, where there is a solver, of one of its own.
    """

    @functools.wraps(problem)
    def check(subject: Subject) -> Iterator[str]:
        for seed in SEEDS:
            env = subject.fresh()
            for turn, step in enumerate(steps(env, subject.actions(seed), seed=seed)):
                if found := problem(step):
                    yield f"{found} (seed {seed}, turn {turn})"
                    return
            env.close()
        env = subject.fresh()
        observation, info = env.reset(seed=SEEDS[0])
        player = env.solver()
        for turn in range(64 if player is not None else 0):
            step = as_step(env.step(player.act(observation, info)))  # type: ignore[union-attr,arg-type]
            if found := problem(step):
                yield f"{found} (seed {SEEDS[0]}, turn {turn + 1}, played by the solver)"
                return
            if has_ended(step):
                break
            observation, info = step.observation, step.info
        env.close()

    return check


@_of_steps
def rewards_finite(step: Step) -> str | None:
    """Every reward is a finite number."""
    return number_problem(step.reward)


@_of_steps
def reward_components(step: Step) -> str | None:
    """The components of a reward sum to it."""
    return None if info_problem(step.info) or number_problem(step.reward) else components_problem(step)


@_of_steps
def one_ending(step: Step) -> str | None:
    """The flags are booleans, and a step is terminated or truncated, never both."""
    if wrong := flags_problem(step):
        return wrong
    both = step.terminated and step.truncated
    return "terminated and truncated are both set; a task that has ended is only terminated" if both else None


@_of_steps
def truncation_reason(step: Step) -> str | None:
    """A truncation says why, and only a truncation does."""
    if info_problem(step.info) or flags_problem(step):
        return None  # other checks say so
    reason = step.info.get("truncation_reason")
    if step.truncated and reason is None:
        return "truncated without info['truncation_reason']; build the step with Step.truncation(..., reason=...)"
    if reason is not None and reason not in list(TruncationReason):
        return f"info['truncation_reason'] is {reason!r}; use one of {', '.join(TruncationReason)}"
    if reason is not None and not step.truncated:
        return "info['truncation_reason'] is set on a step that is not truncated; leave it out"
    return None


@_of_steps
def observations(step: Step) -> str | None:
    """Observations are text that UTF-8 can encode, and the last one of an episode is there."""
    if wrong := observation_problem(step.observation):
        return wrong
    if has_ended(step) and not step.observation:
        return "the final observation is missing; return what the policy would see next"
    return None


@_of_steps
def info_json(step: Step) -> str | None:
    """`info` is a dict that can be written as JSON, and what the library reads in it is of the right type."""
    if wrong := info_problem(step.info):
        return wrong
    for key, value in step.info.items():
        try:
            json.dumps({key: value}, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return f"info[{key!r}] is not JSON-serialisable ({error}); use plain numbers, strings, lists and dicts"
    return None


def close_twice(subject: Subject) -> Iterator[str]:
    """Closing an environment again does nothing."""
    env: Any = subject.fresh()
    env.reset(seed=SEEDS[0])
    env.close()
    try:
        env.close()
    except Exception as error:
        yield f"the second close raised {type(error).__name__}: {error}; closing again must do nothing"
