"""Many copies of one environment, stepped together in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envgym.env import TextEnv
from envgym.errors import EpisodeOrderError, RewardError
from envgym.registry import make
from envgym.wrappers import REWARD_TOLERANCE

_NUMBERS = (bool, int, float)
Batch = tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


def make_vec(
    id: str | EnvSpec,
    num_envs: int,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    max_turns: int | None = None,
    checks: bool = True,
    **kwargs: Any,
) -> TextVectorEnv:
    """Makes copies of an environment that are stepped together; `gymnasium.make_vec` in less time.

    For one process per environment use `gymnasium.make_vec(id, num_envs, vectorization_mode="async")`.

    Args:
        id: Id of a registered environment, or an `EnvSpec`.
        num_envs: Number of copies, >= 1.
        autoreset_mode: When an ended episode is followed by the next; see `gymnasium.vector.AutoresetMode`.
        wrappers: Put around each copy, the first innermost.
        max_turns: Turn limit in place of the registered one; None keeps that.
        checks: Whether rewards and the order of calls are checked, as the guard of a single environment does.
        kwargs: Arguments of the environment's constructor.

    Raises:
        UnknownIdError: No such environment; the message suggests the nearest.
        ValueError: `num_envs` or `max_turns` is below 1, or the constructor does not take an argument or its value.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")

    def make_one() -> TextEnv:
        env = make(id, max_turns=max_turns, checks=False, **kwargs)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return TextVectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode, checks=checks)


class TextVectorEnv(SyncVectorEnv[Any, Any]):
    """Gymnasium's synchronous vector environment for text, with the checks of the guard done for all copies at once.

    Resets, the three autoreset modes and the form of `infos` are Gymnasium's, with one difference: where the values of
    one key differ in type, their array keeps them as they are, where Gymnasium casts them to the type of the first.

    Args:
        env_fns: Make the copies; without guards, which would check everything twice.
        autoreset_mode: When an ended episode is followed by the next.
        checks: Whether to check rewards and the order of calls.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        checks: bool = True,
    ) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        self.checks = checks
        self._started = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts an episode in every copy, or in those of `options["reset_mask"]`; see Gymnasium's."""
        # Gymnasium writes into these where there is a mask, but the caller may still hold them.
        self._terminations, self._truncations = self._terminations.copy(), self._truncations.copy()
        result = super().reset(seed=seed, options=options)
        self._started = True
        return result

    def step(self, actions: Iterable[str]) -> Batch:
        """Steps every copy; see Gymnasium's for what happens where an episode has ended.

        Raises:
            EpisodeOrderError: `step` was called before reset or, where nothing resets by itself, after an end.
            RewardError: A reward is not finite, or its components do not sum to it.
        """
        if self.checks and not self._started:
            raise EpisodeOrderError("step was called before reset; call reset first")
        ended = np.flatnonzero(self._autoreset_envs).tolist() if self._autoreset_envs.any() else ()
        if ended and self.autoreset_mode is AutoresetMode.NEXT_STEP:
            steps = self._step_or_reset(actions, frozenset(ended))
        elif ended and self.checks and self.autoreset_mode is AutoresetMode.DISABLED:
            raise EpisodeOrderError(
                f"step was called after the episodes of copies {ended} had ended; "
                "call reset with options={'reset_mask': ...} first"
            )
        else:
            steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        self._env_obs = list(observations)
        self._rewards = np.array(rewards, dtype=np.float64)
        self._terminations = np.array(terminated, dtype=np.bool_)
        self._truncations = np.array(truncated, dtype=np.bool_)
        self._autoreset_envs = self._terminations | self._truncations
        if self.autoreset_mode is AutoresetMode.SAME_STEP and self._autoreset_envs.any():
            batched = self._restart(list(infos))
            self._autoreset_envs = np.zeros(self.num_envs, dtype=np.bool_)
        else:
            batched = batch_infos(infos)
        if self.checks:
            self._check(batched)
        self._observations = tuple(self._env_obs)
        return self._observations, self._rewards, self._terminations, self._truncations, batched

    def _step_or_reset(self, actions: Iterable[str], ended: frozenset[int]) -> list[Any]:
        """Begins the next episode in the copies whose last one has ended, and steps the others."""
        steps: list[Any] = []
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if index in ended:
                observation, info = env.reset()
                steps.append((observation, 0.0, False, False, info))
            else:
                steps.append(env.step(action))
        return steps

    def _restart(self, infos: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Begins the next episode in the copies whose last one has just ended, and keeps what that ended with."""
        ended = np.flatnonzero(self._autoreset_envs).tolist()
        final_obs = np.full(self.num_envs, None, dtype=object)
        final_infos = [infos[index] for index in ended]
        for index in ended:
            final_obs[index] = self._env_obs[index]
            self._env_obs[index], infos[index] = self.envs[index].reset()
        has_ended = self._autoreset_envs
        final_info = batch_infos(final_infos, ended, self.num_envs)
        final = {
            "final_obs": final_obs,
            "_final_obs": has_ended,
            "final_info": final_info,
            "_final_info": has_ended.copy(),
        }
        return {**batch_infos(infos), **final}

    def _check(self, batched: Mapping[str, Any]) -> None:
        """Compares all rewards with the sums of their components."""
        totals = np.zeros(self.num_envs)
        have = np.zeros(self.num_envs, dtype=np.bool_)
        for infos in (batched, batched.get("final_info", {})):
            components = infos.get("reward_components", {})
            for name, values in components.items():
                if f"_{name}" in components:  # otherwise it is itself such a mask
                    totals = totals + values
            have |= infos.get("_reward_components", False)
        with np.errstate(invalid="ignore"):
            fine = np.abs(np.where(have, totals, self._rewards) - self._rewards) <= REWARD_TOLERANCE
        if not fine.all():
            index = int(np.flatnonzero(~fine)[0])
            reward = self._rewards[index]
            if not math.isfinite(reward):
                raise RewardError(f"copy {index}: a reward must be a finite number, got {reward}")
            raise RewardError(f"copy {index}: the reward components sum to {totals[index]}, but the reward is {reward}")


def batch_infos(
    infos: Sequence[Mapping[str, Any]], where: Sequence[int] | None = None, num_envs: int | None = None
) -> dict[str, Any]:
    """Infos of several copies as one, in Gymnasium's form: an array for each key, and under `_key` who has it.

    Dictionaries are batched in turn. Numbers become an array of their type, of float64 where their types differ, with 0
    for copies that have none; anything else becomes an array of objects, with None.

    Args:
        infos: The infos.
        where: The copy that each is from; None where all copies have one.
        num_envs: Number of copies; None where all have one.
    """
    size = len(infos) if num_envs is None else num_envs
    batched: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(infos)):
        try:
            values, rows = [info[key] for info in infos], where
        except KeyError:
            having = [(row, info[key]) for row, info in zip(where or range(size), infos, strict=True) if key in info]
            rows, values = map(list, zip(*having, strict=True))
        batched[key] = _column(values, rows, size)
        batched[f"_{key}"] = _spread(True, rows, size, np.bool_)
    return batched


def _column(values: list[Any], rows: Sequence[int] | None, size: int) -> Any:
    kinds = set(map(type, values))
    if kinds == {dict}:
        return batch_infos(values, rows, size)
    if all(kind in _NUMBERS or issubclass(kind, np.number) for kind in kinds):
        return _spread(values, rows, size, kinds.pop() if len(kinds) == 1 else np.float64)
    return _spread(values, rows, size, object)


def _spread(values: Any, rows: Sequence[int] | None, size: int, dtype: Any) -> npt.NDArray[Any]:
    """An array with the values at some rows."""
    if dtype is object:
        array = np.full(size, None, dtype=object)
    else:
        array = np.zeros(size, dtype=dtype)
    array[slice(None) if rows is None else rows] = values
    return array
