"""Loggers: where the metrics of every iteration go. Every run has two, `metrics.jsonl` and TensorBoard events."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from envgym.training.run_folder import EVENTS, METRICS, append_lines, writing


class Logger(Protocol):
    """Takes the metrics of every iteration, on the main rank only.

    It may also have `close()`, called when the run ends in whatever way, and, like a callback, `state_dict()` and
    `load_state_dict(dict)`, which checkpoints keep. A resumed run logs again what came after its checkpoint.
    """

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an iteration, once it has ended; iteration 0 is warm start and first evaluation.

        Args:
            iteration: Counted from 1; 0 precedes training.
            metrics: By name, `group/name`; some may be infinite or not a number.
        """


class MetricsFile:
    """A line of `metrics.jsonl` for each iteration; a number that is not finite is written as null."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends a line.

        Raises:
            StorageError: It cannot be written; the message says how to go on.
        """
        line = {name: (value if math.isfinite(value) else None) for name, value in metrics.items()}
        append_lines(self._run_dir, METRICS, [json.dumps({"iteration": iteration, **line})])


class TensorBoard:
    """Events in a new file for each process, the earlier ones of an iteration that comes again no longer count.

    They are written at once by the thread that logs them: TensorBoard's own writer does it in a thread of its own, and
    waits for ever once that has died of a full disk.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._file: Any = None
        self._records: Any = None

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Writes a scalar for each metric.

        Raises:
            StorageError: They cannot be written; the message says how to go on.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        with writing(self._run_dir, EVENTS):
            if self._file is None:
                self._open(iteration)
            self._add(step=iteration, summary=Summary(value=values))
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with suppress(OSError):  # everything was flushed when it was logged
                self._file.close()

    def _open(self, first_step: int) -> None:
        """Starts a file; events of earlier files from this step on no longer count."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = self._run_dir / EVENTS
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"events.out.tfevents.{time.time_ns() // 1000}.{os.getpid()}").open("xb")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
