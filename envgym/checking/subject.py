"""The environment under check: fresh instances of it, and episodes played on them."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from gymnasium.envs.registration import EnvSpec

from envgym.env import Step, TextEnv
from envgym.errors import ContractError
from envgym.registry import make
from envgym.wrappers import EpisodeGuard, MaxTurns, as_step
from envgym.wrappers.guard import flags_problem, number_problem, reset_form_problem

NUM_TURNS = 24
"""Turns that an episode of a check is played at most, unless it is a scripted player's."""

Record = tuple[str, Any]
"""One entry of a transcript: the observation, reward and flags as JSON text, and the info."""


class Subject:
    """Makes instances of the environment under check.

    Args:
        source: Id or `EnvSpec` of a registered environment, a class or factory, or an instance (copied for each use).

    Raises:
        UnknownIdError: No environment is registered under that id.
        ValueError: The source makes no `TextEnv`, or an instance cannot be copied.
    """

    def __init__(self, source: str | EnvSpec | TextEnv | Callable[[], Any]) -> None:
        self._open: list[Any] = []
        self._factory = _factory(source)
        env = self.fresh()
        self.name = env.spec.id if env.spec is not None else type(env).__name__
        self.close()

    def close(self) -> None:
        """Closes every instance made so far; the check of `close` itself is where its errors are reported."""
        while self._open:
            with contextlib.suppress(Exception):
                self._open.pop().close()

    def fresh(self) -> TextEnv:
        """A new instance without wrappers, so that nothing hides what it does."""
        env = self._make().unwrapped
        if not isinstance(env, TextEnv):
            raise ValueError(f"check_env checks instances of TextEnv, got {type(env).__name__}; derive it from TextEnv")
        return env

    def limited(self, max_turns: int) -> TextEnv:
        """A new instance with its turn limit and nothing else around it.

        Args:
            max_turns: Turn limit where the environment has none.
        """
        made = self._make()
        limit = made.get_wrapper_attr("max_turns") or max_turns
        return cast(TextEnv, MaxTurns(made.unwrapped, limit, made.get_wrapper_attr("terminal_limits")))

    def guarded(self, max_turns: int) -> TextEnv:
        """A new instance as `envgym.make` returns it; where it has no turn limit or no guard, both are added.

        Args:
            max_turns: Turn limit where the environment has none.
        """
        made = self._make()
        if _has_guard(made) and made.get_wrapper_attr("max_turns") is not None:
            return made
        return cast(TextEnv, EpisodeGuard(MaxTurns(made, made.get_wrapper_attr("max_turns") or max_turns)))

    def _make(self) -> Any:
        made = self._factory()
        self._open.append(made)
        return made

    def actions(self, seed: int, count: int = NUM_TURNS) -> list[str]:
        """Actions drawn from a copy of the action space."""
        env = self.fresh()
        space = copy.deepcopy(env.action_space)
        space.seed(seed)
        return [space.sample() for _ in range(count)]


def _factory(source: Any) -> Callable[[], Any]:
    if isinstance(source, str | EnvSpec):
        return lambda: make(source)
    if callable(source):
        return source

    def copied() -> TextEnv:
        try:
            return copy.deepcopy(source.unwrapped)
        except Exception as error:
            name = type(source.unwrapped).__name__
            raise ValueError(f"this {name} cannot be copied ({error}); pass its class or a factory instead") from error

    return copied


def _has_guard(env: Any) -> bool:
    while env is not env.unwrapped:
        if isinstance(env, EpisodeGuard):
            return True
        env = env.env
    return False


def steps(env: TextEnv, actions: list[str], *, seed: int | None) -> Iterator[Step]:
    """The steps of an episode, up to its end or the last action. The reset comes first as a step without reward."""
    result = env.reset(seed=seed)
    if problem := reset_form_problem(result):
        raise ContractError(problem)
    observation, info = result
    yield Step(observation, 0.0, False, False, info)
    for action in actions:
        step = as_step(env.step(action))
        yield step
        if has_ended(step):
            return


def has_ended(step: Step) -> bool:
    """Whether a step ends the episode; flags that cannot even be asked are the business of the check of flags."""
    return bool(flags_problem(step) or step.terminated or step.truncated)


def record(step: Step) -> Record:
    """A step in a form that can be compared."""
    reward = step.reward if number_problem(step.reward) else float(step.reward)
    flags = (step.terminated, step.truncated) if flags_problem(step) else (bool(step.terminated), bool(step.truncated))
    plain = (step.observation, reward, *flags)
    return json.dumps(plain, default=repr), json.dumps(step.info, sort_keys=True, default=repr)


def transcript(env: TextEnv, actions: list[str], *, seed: int | None) -> list[Record]:
    """The records of an episode."""
    return [record(step) for step in steps(env, actions, seed=seed)]


def difference(expected: list[Record], actual: list[Record]) -> str | None:
    """Where two transcripts first differ, `info` left aside; None where they do not."""
    for turn, ((left, _), (right, _)) in enumerate(zip(expected, actual, strict=False)):
        if left != right:
            return f"turn {turn} gave {_cut(right)} instead of {_cut(left)}"
    return None if len(expected) == len(actual) else f"{len(actual)} turns instead of {len(expected)}"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
