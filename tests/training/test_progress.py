"""The time left: from the second unit on, however slow the units are."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from envgym.training import progress
from envgym.training.progress import ProgressDisplay


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list of one number to change."""
    now = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_slow_units_have_an_estimate_after_the_second(clock):
    with ProgressDisplay(enabled=False).phase("training", 10) as phase:
        assert phase.seconds_left() is None
        clock[0] += 100
        phase.advance()
        assert phase.seconds_left() is None
        clock[0] += 140
        phase.advance()
        assert phase.seconds_left() == pytest.approx(8 * 120)
        clock[0] += 50
        assert phase.seconds_left() == pytest.approx(8 * 120 - 50)
        clock[0] += 5000
        assert phase.seconds_left() == 0.0
        phase.advance(8)
        assert phase.seconds_left() is None


def test_what_was_there_before_does_not_count_for_long(clock):
    with ProgressDisplay(enabled=False).phase("evaluating", 2000) as phase:
        for _ in range(1000):
            phase.advance()  # read from the results folder, in no time
        for _ in range(progress.RECENT):
            clock[0] += 2
            phase.advance()
        assert phase.seconds_left() == pytest.approx(900 * 2)


def test_the_bar_shows_the_estimate(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    display = ProgressDisplay(console=console)
    with display.phase("training", 10) as phase:
        for _ in range(2):
            clock[0] += 3600
            phase.advance(note="success 0.50")
        with console.capture() as captured:
            console.print(display.bars.get_renderable())
    shown = captured.get()
    assert "8:00:00" in shown and "success 0.50" in shown and "-:--:--" not in shown


def test_a_phase_that_an_error_ends_claims_no_time_left(clock, capsys):
    with pytest.raises(OSError, match="gone"), ProgressDisplay().phase("training", 30) as phase:
        for _ in range(3):
            clock[0] += 4
            phase.advance(note="success 0.50, return 0.25")
        clock[0] += 100
        raise OSError("gone")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "training: 3/30 in 12 s, 108 s left  success 0.50, return 0.25"
    assert last == "training: 3/30 in 112 s  success 0.50, return 0.25"


def test_a_phase_in_which_nothing_was_done_leaves_no_line(capsys):
    with ProgressDisplay().phase("evaluating", 5):
        pass
    with ProgressDisplay().phase("evaluating", 2) as phase:
        phase.advance(2)
    assert capsys.readouterr().err == "evaluating: 2/2 in 0 s\n"
