"""The guard of the contract."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np

from envgym.env import Step
from envgym.errors import ContractError, EpisodeOrderError, RewardError
from envgym.wrappers.step_contract import REWARD_TOLERANCE, reset_problem, reward_problem, step_problem
from envgym.wrappers.wrapper import TextWrapper, as_step

_ROLES = ("user", "tool")
_VERDICTS = frozenset({type(None), bool, np.bool_})


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
        spec = self.env.unwrapped.spec
        return type(self.env.unwrapped).__name__ if spec is None else spec.id


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
