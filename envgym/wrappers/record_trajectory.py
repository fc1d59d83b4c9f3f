"""A record of every episode in a file, as it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from envgym.env import Step, ending_fields, env_id_of
from envgym.types import Trajectory, Turn
from envgym.wrappers.guard import reward_fields
from envgym.wrappers.wrapper import TextWrapper, as_step

try:
    import fcntl
except ImportError:  # not a POSIX system: one process may write to a file
    fcntl = None  # type: ignore[assignment]

_BLOCK = 65536


class RecordTrajectory(TextWrapper):
    """Appends the record of each episode to a file, one line that `Trajectory.from_json` reads.

    The record is that of the text: there are no tokens, and `generate_s` is the time between two steps. It shows what
    passes through this wrapper, so put it outermost to record what the agent sees. An episode that raised, or was left
    before its end by reset or close, is recorded as a failure that says so. The seed is that of the last seeded reset;
    the first episode after it can be played again from the record, those that continue its random stream cannot.

    Appending is safe against crashes and against other writers: a line goes out whole, under a lock of the file, and a
    torn line that a killed process left is removed before the next one. Nothing stays open between episodes.

    Args:
        env: The environment.
        path: The file; it and its folder are made when the first episode ends.
        sync: Whether to wait until a line is on the disk, so that it also survives a crash of the whole machine.
    """

    def __init__(self, env: gymnasium.Env[str, str], path: str | os.PathLike[str], sync: bool = False) -> None:
        super().__init__(env, path=os.fspath(path), sync=sync)
        self.path = Path(path)
        self.sync = sync
        self._turns: list[Turn] = []
        self._observation, self._role = "", "user"
        self._seed: int | None = None
        self._options: dict[str, Any] = {}
        self._last = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._leave("reset")
        self._options = dict(options or {})
        self._seed = self._seed if seed is None else int(seed)
        try:
            self._observation, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            self._write(failure=f"{type(error).__name__}: {error}")
            raise
        if self._seed is None:
            self._seed = self.env.unwrapped.np_random_seed
        self._role = info.get("role", "user")
        self._last = time.perf_counter()
        return self._observation, info

    def step(self, action: str) -> Step:  # type: ignore[override]
        started = time.perf_counter()
        try:
            step = as_step(self.env.step(action))
        except Exception as error:
            self._turns.append(self._turn(action, executed=False))
            self._write(failure=f"{type(error).__name__}: {error}")
            raise
        ended = time.perf_counter()
        self._turns.append(
            self._turn(action, generate_s=started - self._last, step_s=ended - started, **reward_fields(step))
        )
        self._observation, self._role, self._last = step.observation, step.info.get("role", "user"), ended
        if step.terminated or step.truncated:
            self._write(**ending_fields(self.env, step))
        return step

    def close(self) -> None:
        self._leave("close")
        self.env.close()

    def _turn(self, action: str, reward: float = 0.0, **fields: Any) -> Turn:
        return Turn(observation=self._observation, action=action, reward=reward, role=self._role, **fields)

    def _leave(self, call: str) -> None:
        if self._turns:
            self._write(failure=f"left before its end by {call}")

    def _write(self, *, terminated: bool = False, truncated: bool = False, **ending: Any) -> None:
        turns, self._turns = tuple(self._turns), []
        seed = -1 if self._seed is None else self._seed
        record = Trajectory(env_id_of(self.env), seed, turns, terminated, truncated, options=self._options, **ending)
        append_line(self.path, record.to_json(), sync=self.sync)


def append_line(path: Path, line: str, *, sync: bool = False) -> None:
    """Appends a line to a file, whole; see `RecordTrajectory`.

    Args:
        path: The file; made with its folder where it is missing.
        line: The line without its end.
        sync: Whether to wait until it is on the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
        _remove_torn_line(file)
        data = memoryview(line.encode("utf-8") + b"\n")
        while data:
            data = data[file.write(data) :]
        if sync:
            os.fsync(descriptor)


def _remove_torn_line(file: Any) -> None:
    """Shortens the file to its last complete line."""
    end = start = file.seek(0, os.SEEK_END)
    complete = 0
    while start and not complete:
        stop, start = start, max(0, start - _BLOCK)
        file.seek(start)
        newline = file.read(stop - start).rfind(b"\n")
        complete = start + newline + 1 if newline >= 0 else 0
    if complete < end:
        file.truncate(complete)
