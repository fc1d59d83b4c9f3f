"""Many copies of one environment, stepped together in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envgym.env import TextEnv
from envgym.registry import make


def make_vec(
    id: str | EnvSpec,
    num_envs: int,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    max_turns: int | None = None,
    **kwargs: Any,
) -> SyncVectorEnv[Any, Any]:
    """Makes copies of an environment that are stepped together, each as `envgym.make` gives it.

    What comes back is Gymnasium's own vector environment: its three autoreset modes, and its form of `infos`, in which
    the values of one key take the type of the first. For one process per environment use
    `gymnasium.make_vec(id, num_envs, vectorization_mode="async")`.

    Args:
        id: Id of a registered environment, or an `EnvSpec`.
        num_envs: Number of copies, >= 1.
        autoreset_mode: When an ended episode is followed by the next; see `gymnasium.vector.AutoresetMode`.
        wrappers: Put around each copy, the first innermost.
        max_turns: Turn limit in place of the registered one; None keeps that.
        kwargs: Arguments of the environment's constructor.

    Raises:
        UnknownIdError: No such environment; the message suggests the nearest.
        ValueError: `num_envs` or `max_turns` is below 1, or the constructor does not take an argument or its value.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")

    def make_one() -> TextEnv:
        env = make(id, max_turns=max_turns, **kwargs)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    # Observations are tuples of strings: there is nothing to copy.
    return SyncVectorEnv([make_one] * num_envs, copy=False, autoreset_mode=autoreset_mode)
