"""The files of a training run, and how they are rewound to a checkpoint."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from envgym.config import TrainConfig
from envgym.errors import CheckpointError
from envgym.types import Trajectory

CONFIG, METRICS, TRAJECTORIES = "config.json", "metrics.jsonl", "trajectories.jsonl"
MODEL, INITIAL_MODEL, CHECKPOINTS, EVENTS = "model", "initial_model", "checkpoints", "tensorboard"
LOCK = ".lock"


class RunFolder:
    """Writes a run's records. Only the main rank makes one.

    Args:
        path: The folder.
        lock: Its lock file, held open until `close`; the kernel lets go of it however the process ends.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        self._events: Any = None

    @classmethod
    def create(cls, config: TrainConfig) -> RunFolder:
        """A new run folder with its `config.json`.

        What a run that ended before its first checkpoint left there is removed: there is nothing in it to continue.

        Raises:
            ValueError: The folder already holds a run with a checkpoint, or anything else, or is in use.
        """
        path = config.run_dir
        lock = None
        if _never_began(path):
            lock = _lock(path)
            for name in (INITIAL_MODEL, CHECKPOINTS, EVENTS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (CONFIG, METRICS, TRAJECTORIES):
                (path / name).unlink(missing_ok=True)
        if (path / CONFIG).is_file():
            raise ValueError(
                f"'{path}' already holds a run; continue it with resume=True (--resume) or choose another run_dir"
            )
        if path.exists() and (not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir())):
            raise ValueError(f"'{path}' is not an empty folder; choose another run_dir")
        path.mkdir(parents=True, exist_ok=True)
        lock = lock or _lock(path)
        write_atomically(path / CONFIG, config.model_dump_json(indent=2) + "\n")
        return cls(path, lock)

    @classmethod
    def reopen(cls, config: TrainConfig) -> RunFolder:
        """The folder of a run to continue.

        Raises:
            CheckpointError: There is no run, or its configuration differs in more than its length, its evaluations and
                checkpoints, and the device it runs on.
        """
        stored = read_config(config.run_dir).model_dump(mode="json")
        asked = config.model_dump(mode="json")
        free = ("run_dir", "num_iterations", "checkpoint", "evaluation", "device", "torch_threads")
        changed = [key for key in asked if key not in free and asked[key] != stored.get(key)]
        if changed:
            raise CheckpointError(
                f"the run in '{config.run_dir}' was started with other settings in {', '.join(changed)}; "
                "resume it with its own config.json, or start a new run"
            )
        lock = _lock(config.run_dir)
        write_atomically(config.run_dir / CONFIG, config.model_dump_json(indent=2) + "\n")
        return cls(config.run_dir, lock)

    def sizes(self) -> dict[str, int]:
        """Bytes of each record so far; a checkpoint keeps them for `rewind`."""
        return {name: self._size(name) for name in (METRICS, TRAJECTORIES)}

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Cuts the records back to what they were at a checkpoint.

        Raises:
            CheckpointError: A record is shorter than it was then.
        """
        for name, size in sizes.items():
            if self._size(name) < size:
                raise CheckpointError(f"'{self.path / name}' is shorter than at the checkpoint; it was changed or cut")
            if (self.path / name).exists():
                os.truncate(self.path / name, size)

    def _size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends a line to `metrics.jsonl` and the same numbers to the TensorBoard events.

        A number that is not finite is written as null.
        """
        line = {name: (value if math.isfinite(value) else None) for name, value in metrics.items()}
        self._append(METRICS, [json.dumps({"iteration": iteration, **line})])
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path / EVENTS), purge_step=iteration)
        for name, value in metrics.items():
            self._events.add_scalar(name, value, iteration)
        self._events.flush()

    def record(self, trajectories: Iterable[Trajectory]) -> None:
        """Appends trajectories to `trajectories.jsonl`."""
        self._append(TRAJECTORIES, (trajectory.to_json() for trajectory in trajectories))

    def _append(self, name: str, lines: Iterable[str]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self._lock.close()


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
    ours = {LOCK, CONFIG, METRICS, TRAJECTORIES, INITIAL_MODEL, CHECKPOINTS, EVENTS, f".{CONFIG}.tmp"}
    if not (path / CONFIG).is_file() or any(entry.name not in ours for entry in path.iterdir()):
        return False
    if (path / CHECKPOINTS).is_dir() and any(not e.name.startswith(".") for e in (path / CHECKPOINTS).iterdir()):
        return False
    try:
        TrainConfig.model_validate(json.loads((path / CONFIG).read_text(encoding="utf-8")))
    except ValueError:
        return False
    return True


def read_config(run_dir: Path) -> TrainConfig:
    """The configuration of a run, with `run_dir` as it is called now.

    Raises:
        CheckpointError: The folder holds no run, or its `config.json` is damaged.
    """
    path = Path(run_dir) / CONFIG
    if not path.is_file():
        raise CheckpointError(f"'{run_dir}' holds no run (it has no {CONFIG}); start one without resume")
    try:
        return TrainConfig.model_validate({**json.loads(path.read_text(encoding="utf-8")), "run_dir": run_dir})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"'{path}' is not a valid configuration: {error}") from error


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, a last one that was cut in writing left out."""
    path = Path(run_dir) / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole: a reader, or a crash, sees the old text or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
