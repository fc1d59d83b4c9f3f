"""Many copies of one environment, stepped together in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import not_
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envgym.env import TextEnv
from envgym.errors import ContractError, EpisodeOrderError
from envgym.registry import make
from envgym.vector_checks import check_step, plain_infos
from envgym.vector_infos import VectorInfos, batch_infos, frozen_info, frozen_infos
from envgym.wrappers import reset_problem

Batch = tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]
Columns = tuple[
    tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], list[dict[str, Any]]
]


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
        checks: Whether results and the order of calls are checked, as the guard of a single environment does.
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

    Resets, the three autoreset modes and the form of `infos` are Gymnasium's. Two things differ: where the values
    of one key differ in type, their array keeps them as they are, where Gymnasium casts them to the type of the first;
    and the arrays in the `infos` of a step are made when they are first asked for, since few are (`VectorInfos`).

    Args:
        env_fns: Make the copies; without guards, which would check everything twice.
        autoreset_mode: When an ended episode is followed by the next.
        checks: Whether to check results and the order of calls.
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
        self._unstarted = set(range(self.num_envs))
        self._ended = [False] * self.num_envs
        self._texts = [""] * self.num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts an episode in every copy, or in those of `options["reset_mask"]`.

        Args:
            seed: One for each copy, or the first of as many in a row; None continues the present streams.
            options: Passed to every copy. "reset_mask", a bool array [num_envs] with at least one true, is not.

        Raises:
            ContractError: What a copy returned breaks the contract.
            TypeError: The mask is no array of bool.
            ValueError: There are fewer or more seeds than copies, or the mask is of another length or all false.
        """
        if seed is None or isinstance(seed, (int, np.integer)):
            seed = [None if seed is None else int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected one seed for each of {self.num_envs} copies, got {len(seed)}")
        rows, options = _chosen(options, self.num_envs)
        infos = []
        for row in rows:
            self._unstarted.add(row)
            self._texts[row], info = self._reset_copy(row, seed[row], options)
            infos.append(info)
            self._unstarted.discard(row)
            self._ended[row] = False
        return tuple(self._texts), batch_infos(infos, rows, self.num_envs)

    def step(self, actions: Iterable[str]) -> Batch:
        """Steps every copy; see Gymnasium's for what happens where an episode has ended.

        Raises:
            EpisodeOrderError: `step` was called before reset or, where nothing resets by itself, after an end.
            ContractError: What a copy returned breaks the contract.
            RewardError: A reward is no finite number, or its components do not sum to it.
        """
        if self.checks:
            self._check_order()
        begins = self._ended
        if True in begins and self.autoreset_mode is AutoresetMode.NEXT_STEP:
            steps: list[Any] = [
                _first_step(*self._reset_copy(index)) if begin else env.step(action)
                for index, (env, action, begin) in enumerate(zip(self.envs, actions, begins, strict=True))
            ]
        else:
            steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        observations, rewards, terminations, truncations, infos = self._columns(steps, begins)
        self._texts = list(observations)
        self._ended = (terminations | truncations).tolist()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and True in self._ended:
            for index in compress(range(self.num_envs), self._ended):
                observation, info = self._reset_copy(index)
                self._texts[index] = observation
                final = {"final_obs": observations[index], "final_info": infos[index]}
                infos[index] = {**final, **(frozen_info(info) if dict in map(type, info.values()) else info)}
            self._ended = [False] * self.num_envs
            observations = tuple(self._texts)
        return observations, rewards, terminations, truncations, VectorInfos(infos)

    def _check_order(self) -> None:
        if self._unstarted:
            raise EpisodeOrderError("step was called before reset; call reset first")
        if self.autoreset_mode is AutoresetMode.DISABLED and True in self._ended:
            ended = list(compress(range(self.num_envs), self._ended))
            raise EpisodeOrderError(
                f"step was called after the episodes of copies {ended} had ended; "
                "call reset with options={'reset_mask': ...} first"
            )

    def _columns(self, steps: Sequence[Any], begins: Sequence[bool]) -> Columns:
        """Steps as arrays, with their infos as they are now, checked."""
        try:
            observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
            flags = np.array(terminated + truncated)
            arrays = np.array(rewards), flags[: self.num_envs], flags[self.num_envs :]
            plain = arrays[0].dtype.char == "d" and flags.dtype.char == "?"
        except (TypeError, ValueError):  # a step is no tuple of five, or holds what is no number
            plain = False
        if not plain:
            return self._odd_columns(steps, begins)
        frozen, odd = plain_infos(observations, rewards, infos) if self.checks else (frozen_infos(infos), ())
        for index in odd:
            if not begins[index]:
                check_step(index, steps[index])
            frozen[index] = frozen_info(infos[index])
        return observations, *arrays, frozen

    def _odd_columns(self, steps: Sequence[Any], begins: Sequence[bool]) -> Columns:
        if self.checks:
            for index in compress(range(self.num_envs), map(not_, begins)):
                check_step(index, steps[index])
        observations, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        return (
            observations,
            np.array(rewards, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            frozen_infos(infos),
        )

    def _reset_copy(
        self, index: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if seed is None and options is None:
            result = self.envs[index].reset()
        else:
            result = self.envs[index].reset(seed=seed, options=options)
        if self.checks and (problem := reset_problem(result)):
            raise ContractError(f"copy {index}: {problem}")
        return result


def _first_step(observation: str, info: dict[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """The first observation of an episode in the form of a step."""
    return observation, 0.0, False, False, info


def _chosen(options: dict[str, Any] | None, num_envs: int) -> tuple[list[int], dict[str, Any] | None]:
    """The copies to reset, and the options for them."""
    if options is None or "reset_mask" not in options:
        return list(range(num_envs)), options
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must be an array of bool, got {mask!r}")
    if mask.shape != (num_envs,) or not mask.any():
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},) and one true at least, got {mask!r}")
    return np.flatnonzero(mask).tolist(), {key: value for key, value in options.items() if key != "reset_mask"}
