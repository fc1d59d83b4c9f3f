"""Checks of what an environment declares: its tools and its solver."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, cast

from envgym.agent import Player
from envgym.checking.subject import Subject
from envgym.env import TextEnv, success_at_end

SEEDS = range(41, 53)
MIN_SUCCESS = 0.75
"""Share of episodes a solver must solve: some tasks cannot be solved for every seed."""
MAX_TURNS = 200
"""Turns a player gets where the environment sets no limit."""


def tool_schemas(subject: Subject) -> Iterator[str]:
    """Every declared tool has a function schema, and it fits the method of that name."""
    env = subject.fresh()
    toolbox = getattr(env, "toolbox", {})
    declared: dict[str, Any] = {}
    for schema in env.tools:
        try:
            function = schema["function"]
            name, properties = function["name"], function["parameters"]["properties"]
        except (KeyError, TypeError):
            yield f'{schema!r} is no schema of the form {{"type": "function", "function": {{"name", "parameters"}}}}'
            continue
        declared[name] = schema
        if name in toolbox:
            if toolbox[name].schema["function"]["parameters"] != function["parameters"]:
                usage = toolbox[name].usage
                yield f"the schema of tool '{name}' does not match its function {usage}; remove the hand-written one"
        elif toolbox:
            yield f"tool '{name}' has a schema but no function; mark its method with @tool"
        elif callable(method := getattr(env, name, None)):
            names = list(inspect.signature(method).parameters)
            if sorted(names) != sorted(properties):
                yield f"the schema of tool '{name}' names {sorted(properties)}, but its function takes {sorted(names)}"
    for name in toolbox:
        if name not in declared:
            yield f"tool '{name}' has a function but no schema; remove the hand-written `tools`"


def solver(subject: Subject) -> Iterator[str]:
    """A declared solver solves the task; where success is not reported it earns at least what random actions do."""
    if subject.fresh().solver() is None:
        return
    successes: list[Any] = []
    rewards = {"solver": 0.0, "random": 0.0}
    for seed in SEEDS:
        env = subject.limited(MAX_TURNS)
        success, reward = _play(env, seed, cast(Player, cast(TextEnv, env.unwrapped).solver()).act)
        successes.append(success)
        rewards["solver"] += reward
        rewards["random"] += _play(
            env, seed, lambda *_, actions=cycle(subject.actions(seed, MAX_TURNS)): next(actions)
        )[1]
    if all(success is None for success in successes):
        if rewards["solver"] < rewards["random"]:
            yield f"the solver earns less than random actions over {len(SEEDS)} episodes: {rewards}"
        return
    rate = sum(success is True for success in successes) / len(successes)
    if rate < MIN_SUCCESS:
        failed = [seed for seed, success in zip(SEEDS, successes, strict=True) if success is not True]
        yield f"the solver succeeds in {rate:.0%} of the episodes, not {MIN_SUCCESS:.0%}; failed seeds {failed}"


def _play(env: TextEnv, seed: int, act: Callable[..., Any]) -> tuple[Any, float]:
    """Success and total reward of an episode."""
    observation, info = env.reset(seed=seed)
    total = 0.0
    while True:
        observation, reward, terminated, truncated, info = env.step(act(observation, info))
        total += reward
        if terminated or truncated:
            return success_at_end(env, info), total
