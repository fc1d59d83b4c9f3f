"""Checks of randomness and isolation: the same seed and actions are the same episode, whatever happens around it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import cast

import numpy as np

from envgym.checking.subject import Subject, difference, record, transcript
from envgym.env import Step, TextEnv
from envgym.errors import ContractError, EpisodeOrderError
from envgym.wrappers import as_step

SEEDS = (11, 12, 13, 14)


def seeding(subject: Subject) -> Iterator[str]:
    """The seed decides the episode."""
    for seed in SEEDS:
        actions = subject.actions(seed)
        env = subject.fresh()
        first = transcript(env, actions, seed=seed)
        if env.np_random_seed != seed:
            yield f"reset(seed={seed}) did not seed np_random; call super().reset(seed=seed) first"
            return
        for other, where in ((env, "on the same instance"), (subject.fresh(), "on a new instance")):
            if found := difference(first, transcript(other, actions, seed=seed)):
                yield (
                    f"seed {seed} is accepted but the same actions led elsewhere {where}: {found}; "
                    "take all randomness from self.np_random"
                )
                return


def global_random_state(subject: Subject) -> Iterator[str]:
    """Python's and NumPy's process-wide generators are neither changed nor read."""
    seed, actions = SEEDS[0], subject.actions(SEEDS[0])
    saved = random.getstate(), np.random.get_state()
    played = []
    try:
        for state in (1, 2):
            random.seed(state)
            np.random.seed(state)
            before = random.getstate(), repr(np.random.get_state())
            played.append(transcript(subject.fresh(), actions, seed=seed))
            if random.getstate() != before[0]:
                yield "the process-global state of `random` was changed; take all randomness from self.np_random"
                return
            if repr(np.random.get_state()) != before[1]:
                yield "the process-global state of `numpy.random` was changed; take all randomness from self.np_random"
                return
        if found := difference(*played):
            yield f"the episode depends on the process-global random state: {found}; use self.np_random instead"
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def leak_between_episodes(subject: Subject) -> Iterator[str]:
    """An episode does not depend on those played before it on the same instance."""
    env, seed = subject.fresh(), SEEDS[0]
    expected = transcript(subject.fresh(), subject.actions(seed), seed=seed)
    for other in SEEDS[1:]:
        transcript(env, subject.actions(other), seed=other)
        if found := difference(expected, transcript(env, subject.actions(seed), seed=seed)):
            yield f"an episode played before changed this one: {found}; reset every attribute in reset"
            return


def leak_between_instances(subject: Subject) -> Iterator[str]:
    """Two instances stepped in turn do not meet."""
    seeds = SEEDS[:2]
    actions = [subject.actions(seed) for seed in seeds]
    expected = [transcript(subject.fresh(), acts, seed=seed) for acts, seed in zip(actions, seeds, strict=True)]
    envs = [subject.fresh() for _ in seeds]
    played = [[record(_reset(env, seed))] for env, seed in zip(envs, seeds, strict=True)]
    for turn in range(max(len(records) for records in expected) - 1):
        for env, acts, records, target in zip(envs, actions, played, expected, strict=True):
            if turn < len(target) - 1:
                records.append(record(as_step(env.step(acts[turn]))))
    for target, records in zip(expected, played, strict=True):
        if found := difference(target, records):
            yield f"two instances stepped alternately disturbed each other: {found}; keep no state in class or module"
            return


def _reset(env: TextEnv, seed: int) -> Step:
    observation, info = env.reset(seed=seed)
    return Step(observation, 0.0, False, False, info)


def info_reproducible(subject: Subject) -> Iterator[str]:
    """`info` is the same for the same seed and actions."""
    seed, actions = SEEDS[0], subject.actions(SEEDS[0])
    first, second = (transcript(subject.fresh(), actions, seed=seed) for _ in range(2))
    for turn, ((_, left), (_, right)) in enumerate(zip(first, second, strict=False)):
        if left != right:
            yield f"info of turn {turn} differs between two plays of a seed, {left} and {right}; leave times out"
            return


def episode_order(subject: Subject) -> Iterator[str]:
    """A step before reset or after the end is refused, or at least leaves no trace in the next episode."""
    seed, actions = SEEDS[0], subject.actions(SEEDS[0])
    expected = transcript(subject.fresh(), actions, seed=seed)
    env = subject.fresh()
    _misuse(env, actions[:3])
    if found := difference(expected, transcript(env, actions, seed=seed)):
        yield f"steps before reset changed the episode after it: {found}; set every attribute in reset"
    guarded = subject.guarded(max_turns=len(actions))
    if not _refuses(guarded, actions[0]):
        yield "a step before reset was accepted; register the environment with envgym.register"
    _play_out(guarded, actions, seed)
    if not _refuses(guarded, actions[0]):
        yield "a step after the end was accepted; register the environment with envgym.register"
    env = cast(TextEnv, guarded.unwrapped)
    _misuse(env, actions[:3])
    if found := difference(expected, transcript(env, actions, seed=seed)):
        yield f"steps after the end changed the next episode: {found}; set every attribute in reset"


def _play_out(env: TextEnv, actions: list[str], seed: int) -> None:
    """Plays an episode to its end. What the steps return is the business of other checks."""
    env.reset(seed=seed)
    with contextlib.suppress(EpisodeOrderError):
        for action in actions * 100:
            with contextlib.suppress(ContractError):
                env.step(action)


def _misuse(env: TextEnv, actions: list[str]) -> None:
    """Steps where there is no episode. An exception is the better answer, and fine."""
    for action in actions:
        try:
            env.step(action)
        except Exception:
            return


def _refuses(env: TextEnv, action: str) -> bool:
    try:
        env.step(action)
    except EpisodeOrderError:
        return True
    return False
