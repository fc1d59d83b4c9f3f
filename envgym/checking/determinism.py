"""Checks of randomness and isolation: a seed and actions are one episode, and nothing is left behind after it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import cast

import numpy as np

from envgym.checking.subject import Subject, difference, record, steps, transcript
from envgym.env import TextEnv
from envgym.errors import ContractError, EpisodeOrderError

SEEDS = (11, 12, 13, 14)
GRACE_S = 1.0
"""Time that threads and processes get to end after close."""


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
    plays = [map(record, steps(subject.fresh(), acts, seed=seed)) for acts, seed in zip(actions, seeds, strict=True)]
    turns = list(zip_longest(*plays))  # a step of the one, a step of the other
    played = [[entry for entry in entries if entry is not None] for entries in zip(*turns, strict=True)]
    for target, records in zip(expected, played, strict=True):
        if found := difference(target, records):
            yield f"two instances stepped alternately disturbed each other: {found}; keep no state in class or module"
            return


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


def residue(subject: Subject) -> Iterator[str]:
    """What was not there before the episode is gone after close."""
    actions = subject.actions(51)
    subject.close()
    gc.collect()
    before = _threads(), _open_files(), _children()
    env = subject.fresh()
    transcript(env, actions, seed=51)
    env.close()
    deadline = time.monotonic() + GRACE_S
    while True:
        gc.collect()
        left = [now - then for now, then in zip((_threads(), _open_files(), _children()), before, strict=True)]
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for kind, names in zip(("threads", "open files", "child processes"), left, strict=True):
        if names:
            yield f"after close there are still {kind}: {', '.join(sorted(names))}; end them in close"


def _threads() -> set[str]:
    return {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _open_files() -> set[str]:
    """Open file descriptors with what they point to; empty where the system does not list them."""
    files: set[str] = set()
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            os.fstat(int(name))
            files.add(f"{name} {os.path.realpath(f'/dev/fd/{name}')}")
    return files


def _children() -> set[str]:
    """Live child processes of this process, by id."""
    if not Path("/proc/self/stat").exists():
        return {str(child.pid) for child in multiprocessing.active_children()}
    children: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            children.add(f"{stat.parent.name} {name.partition('(')[2]}")
    return children
