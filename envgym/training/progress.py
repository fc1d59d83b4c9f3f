"""What a long command shows while it runs: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

LINE_INTERVAL_S = 10.0
"""Least time between two lines of one phase where there is no terminal."""
RECENT = 100
"""How many counts back the speed is measured: what was finished long ago, or before an interruption, says little."""


class Phase:
    """One counted phase of work."""

    def __init__(self, display: ProgressDisplay, title: str, total: int) -> None:
        self._display = display
        self._title = title
        self._total = total
        self._count = 0
        self._note = ""
        self._started = self._last_line = time.monotonic()
        self._counts: deque[tuple[float, int]] = deque([(self._started, 0)], maxlen=RECENT + 1)
        self._bars = display.bars
        self._task = None
        if self._bars is not None:
            self._task = self._bars.add_task(title, total=total, note="", phase=self)

    def advance(self, count: int = 1, *, note: str | None = None) -> None:
        """Counts work that is finished.

        Args:
            count: How much more.
            note: A few words shown beside the bar; None keeps the last.
        """
        self._count += count
        self._counts.append((time.monotonic(), self._count))
        if note is not None:
            self._note = note
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=self._count, note=self._note)
        elif time.monotonic() - self._last_line >= LINE_INTERVAL_S:
            self._line(self.seconds_left())

    def seconds_left(self) -> float | None:
        """How long the rest will take at the speed of late; None before the second unit and after the last."""
        (since, before), (last, count) = self._counts[0], self._counts[-1]
        if count < min(2, self._total) or count >= self._total or count == before:
            return None
        at_last = (self._total - count) * (last - since) / (count - before)
        return max(at_last - (time.monotonic() - last), 0.0)

    def finish(self) -> None:
        """Ends the phase, also before all of it is done; its bar goes, a plain line stays, unless nothing was done."""
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
        if self._count:
            self._line(None)

    def _line(self, seconds_left: float | None) -> None:
        if not self._display.enabled:
            return
        self._last_line = time.monotonic()
        elapsed = self._last_line - self._started
        left = "" if seconds_left is None else f", {seconds_left:.0f} s left"
        note = f"  {self._note}" if self._note else ""
        line = f"{self._title}: {self._count}/{self._total} in {elapsed:.0f} s{left}{note}"
        self._display.console.print(line, highlight=False, markup=False, soft_wrap=True)


class _TimeLeft(ProgressColumn):
    """Hours, minutes and seconds left. Rich's own column forgets what is older than half a minute, and with it the
    speed of slow units.
    """

    def render(self, task: Task) -> Text:
        seconds = task.fields["phase"].seconds_left()
        text = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        return Text(text, style="progress.remaining")


class ProgressDisplay:
    """Shows phases, on standard error unless told otherwise.

    Args:
        enabled: False shows nothing (other ranks, tests).
        console: Where to, in place of standard error.
    """

    def __init__(self, *, enabled: bool = True, console: Console | None = None) -> None:
        self.enabled = enabled
        self.console = console or Console(file=sys.stderr)
        self.bars: Progress | None = None
        if enabled and self.console.is_terminal:
            self.bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                _TimeLeft(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )

    @contextmanager
    def phase(self, title: str, total: int) -> Iterator[Phase]:
        """Shows a phase of `total` units while the block runs."""
        phase = Phase(self, title, total)
        try:
            yield phase
        finally:
            phase.finish()

    def __enter__(self) -> ProgressDisplay:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()
