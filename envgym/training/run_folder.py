"""The folder of a training run: its records, its lock, and how it is rewound to a checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from envgym.config import TrainConfig, stored_fields
from envgym.errors import CheckpointError, StorageError, written_whole
from envgym.types import Trajectory

CONFIG, METRICS, TRAJECTORIES = "config.json", "metrics.jsonl", "trajectories.jsonl"
MODEL, INITIAL_MODEL, CHECKPOINTS, EVENTS = "model", "initial_model", "checkpoints", "tensorboard"
SERVERS = "servers"
"""Logs of policy servers that were started, and weights on their way to servers by disk."""
LOCK = ".lock"

CHANGEABLE = frozenset(
    {
        *("run_dir", "num_iterations", "checkpoint", "evaluation", "device", "torch_threads"),
        *(f"policy.{name}" for name in ("urls", "weight_sync", "colocated", "mem_fraction", "max_total_tokens")),
        *(f"policy.{name}_timeout_s" for name in ("startup", "generate", "recovery")),
        *(f"rollout.{name}" for name in ("concurrency", "num_threads", "step_timeout_s", "max_attempts")),
        "update.max_microbatch_tokens",
    }
)
"""What a run may be resumed with otherwise than it was started: how long it is and how it is watched, and the machinery
that does the work (where, with how much memory, with how much patience), but nothing that decides what is learned."""


class RunFolder:
    """Writes a run's records. Only the main rank makes one.

    Args:
        path: The folder.
        lock: Its lock file, held open until `close`; the kernel lets go of it however the process ends.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, config: TrainConfig) -> RunFolder:
        """A new run folder with its `config.json`.

        What a run that ended before its first checkpoint left there is removed: there is nothing in it to continue.

        Raises:
            ValueError: The folder already holds a run with a checkpoint, or anything else, or is in use.
            StorageError: It cannot be written.
        """
        path = config.run_dir
        lock = None
        if _never_began(path):
            lock = _lock(path)
            for name in (INITIAL_MODEL, CHECKPOINTS, EVENTS, SERVERS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (CONFIG, METRICS, TRAJECTORIES):
                (path / name).unlink(missing_ok=True)
        if (path / CONFIG).is_file():
            raise ValueError(
                f"'{path}' already holds a run; continue it with resume=True (--resume) or choose another run_dir"
            )
        if path.exists() and (not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir())):
            raise ValueError(f"'{path}' is not an empty folder; choose another run_dir")
        with writing(path, CONFIG):
            path.mkdir(parents=True, exist_ok=True)
            lock = lock or _lock(path)
            _write_config(config)
        return cls(path, lock)

    @classmethod
    def reopen(cls, config: TrainConfig) -> RunFolder:
        """The folder of a run to continue.

        Raises:
            CheckpointError: There is no run, or its configuration differs in more than what is `CHANGEABLE`.
        """
        stored = read_config(config.run_dir).model_dump(mode="json")
        changed = _differing(stored, config.model_dump(mode="json"))
        if changed:
            raise CheckpointError(
                f"the run in '{config.run_dir}' was started with other settings in {', '.join(changed)}; "
                "resume it with its own config.json, or start a new run"
            )
        lock = _lock(config.run_dir)
        with writing(config.run_dir, CONFIG):
            _write_config(config)
        return cls(config.run_dir, lock)

    def sizes(self) -> dict[str, int]:
        """Bytes of each record so far; a checkpoint keeps them for `rewind`.

        They are on the disk then: a checkpoint must not outlive the records it counts on.
        """
        for name in (METRICS, TRAJECTORIES):
            if (self.path / name).exists():
                with writing(self.path, name), (self.path / name).open("ab") as file:
                    os.fsync(file.fileno())
        return {name: _size(self.path / name) for name in (METRICS, TRAJECTORIES)}

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Cuts the records back to what they were at a checkpoint.

        Raises:
            CheckpointError: A record is shorter than it was then.
        """
        for name, size in sizes.items():
            if _size(self.path / name) < size:
                raise CheckpointError(f"'{self.path / name}' is shorter than at the checkpoint; it was changed or cut")
            if (self.path / name).exists():
                os.truncate(self.path / name, size)

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Appends trajectories to `trajectories.jsonl`.

        Raises:
            StorageError: It cannot be written; the message says how to go on.
        """
        append_lines(self.path, TRAJECTORIES, (trajectory.to_json() for trajectory in trajectories))

    def close(self) -> None:
        """Lets another process write the run."""
        self._lock.close()


def append_lines(run_dir: Path, name: str, lines: Iterable[str]) -> None:
    """Appends lines to a record of a run, all of them or none.

    Raises:
        StorageError: They cannot be written; the message says how to go on.
    """
    path = run_dir / name
    before = _size(path)
    with writing(run_dir, name):
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError:
            with suppress(OSError):  # half a line is of no use
                os.truncate(path, before)
            raise


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def continuation(run_dir: Path) -> str:
    """How a run that ended early goes on, in a sentence without its full stop."""
    names = [p.name for p in (Path(run_dir) / CHECKPOINTS).glob("[0-9]" * 6) if p.is_dir() and any(p.iterdir())]
    if not names:
        return f"'{run_dir}' has no checkpoint yet: the same command starts the run again"
    ways = f"train(config, resume=True) or `envgym train --resume {run_dir}`"
    return f"continue from iteration {int(max(names))} with {ways}"


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run has come to a checkpoint, whatever has become of it; those in writing do not count."""
    folder = Path(run_dir) / CHECKPOINTS
    return folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir())


@contextmanager
def writing(run_dir: Path, name: str) -> Iterator[None]:
    """Turns what the system says about a write into an error that names the file and how to go on."""
    try:
        yield
    except OSError as error:
        advice = f"Once it can be written: {continuation(run_dir)}"
        raise StorageError.at(run_dir / name, error.strerror or str(error), advice) from error


def _lock(path: Path) -> IO[str]:
    """The open lock file of a run folder.

    Raises:
        ValueError: Another process writes to this run.
    """
    file = (path / LOCK).open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ValueError(f"another process is training in '{path}'; wait for it or choose another run_dir") from error
    return file


def _never_began(path: Path) -> bool:
    """Whether a folder holds a run of ours that ended before its first checkpoint, and nothing else."""
    ours = {LOCK, CONFIG, METRICS, TRAJECTORIES, INITIAL_MODEL, CHECKPOINTS, EVENTS, SERVERS, f".{CONFIG}.partial"}
    try:
        read_config(path)
    except CheckpointError:
        return False
    return not has_checkpoint(path) and all(entry.name in ours for entry in path.iterdir())


def _differing(stored: Mapping[str, Any], asked: Mapping[str, Any], section: str = "") -> list[str]:
    """Fields that differ and must not, as `section.field`; of sections of two kinds the kind alone."""
    if section and stored.get("kind") != asked.get("kind"):
        return [f"{section}kind"]
    changed = []
    for name in dict.fromkeys([*stored, *asked]):
        before, now = stored.get(name), asked.get(name)
        if f"{section}{name}" in CHANGEABLE or before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            changed += _differing(before, now, f"{section}{name}.")
        else:
            changed.append(f"{section}{name}")
    return changed


def read_config(run_dir: Path) -> TrainConfig:
    """The configuration of a run, with `run_dir` as it is called now.

    Raises:
        CheckpointError: The folder holds no run, or its `config.json` is damaged.
    """
    path = Path(run_dir) / CONFIG
    if not path.is_file():
        raise CheckpointError(f"'{run_dir}' holds no run (it has no {CONFIG}); start one without resume")
    try:
        return TrainConfig.model_validate({**stored_fields(path.read_bytes()), "run_dir": run_dir})
    except ValueError as error:
        raise CheckpointError(f"'{path}' is not a valid configuration: {error}") from error


def _write_config(config: TrainConfig) -> None:
    with written_whole(config.run_dir / CONFIG) as partial:
        partial.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, a last one that was cut in writing left out."""
    path = Path(run_dir) / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
