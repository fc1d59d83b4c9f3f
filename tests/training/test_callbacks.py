"""Callbacks see every station of a run, keep their state over a resumption and end the run; loggers see all metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import metrics_of, tiny, trajectories_of

from envgym.training import Callback, train
from envgym.training.callbacks import load_state_dicts, state_dicts

SHORT = {"warm_start": None, "kl": None, "evaluation": {"episodes": 2}, "checkpoint": {"every": 2}}


class Stations(Callback):
    """Notes what is called, and asks for the end at one station of one iteration."""

    def __init__(self, *stop_at):
        self.calls, self.states, self.stop_at = [], [], stop_at

    def note(self, station, state):
        self.calls.append((state.iteration, station))
        if (state.iteration, station) == self.stop_at:
            state.stop(f"seen {station}")

    def on_start(self, state):
        self.note("start", state)

    def on_collect(self, state):
        assert len(state.trajectories) == 6 and "episode/return" in state.metrics
        assert "policy/loss" not in state.metrics
        self.note("collect", state)

    def on_update(self, state):
        assert "critic/loss" in state.metrics
        state.metrics["mine/count"] = float(len(self.calls))
        self.note("update", state)

    def on_evaluate(self, state):
        assert state.metrics["evaluation/sampled/return"] == state.reports["sampled"].mean_return
        self.note("evaluate", state)

    def on_checkpoint(self, state):
        assert (state.run_dir / "checkpoints" / f"{state.iteration:06d}").is_dir()
        self.note("checkpoint", state)

    def on_end(self, state):
        assert (state.run_dir / "model").is_dir()
        self.note("end", state)


class Kept:
    """A logger that keeps what it is given."""

    def __init__(self):
        self.lines, self.closed = [], False

    def log(self, iteration, metrics):
        self.lines.append({"iteration": iteration, **metrics})

    def close(self):
        self.closed = True


BEGINNING = [(0, "start"), (0, "evaluate"), (0, "checkpoint"), (1, "collect"), (1, "update")]


def test_a_callback_ends_a_run_as_it_would_have_ended_and_a_logger_is_given_what_the_file_holds(tmp_path):
    stations, kept = Stations(1, "update"), Kept()
    result = train(tiny(tmp_path / "run", **SHORT), callbacks=[stations], loggers=[kept], progress=False)
    assert stations.calls == [*BEGINNING, (1, "evaluate"), (1, "checkpoint"), (1, "end")]
    assert result.stopped == "seen update" and result.model_dir.is_dir()
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert lines == kept.lines and kept.closed
    assert [line["iteration"] for line in lines] == [0, 1]
    assert lines[1]["evaluation/greedy/return"] == result.after["greedy"].mean_return
    assert lines[1]["mine/count"] == 4.0
    longer = train(tiny(tmp_path / "run", **SHORT), callbacks=[Stations()], resume=True, progress=False)
    assert longer.stopped is None
    assert [line["iteration"] for line in metrics_of(longer.run_dir)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("stop_at", "calls"),
    [
        ((0, "start"), [*BEGINNING[:3], (0, "end")]),
        ((0, "checkpoint"), [*BEGINNING[:3], (0, "end")]),
        ((2, "checkpoint"), [*BEGINNING, *((2, s) for s in ("collect", "update", "checkpoint", "evaluate", "end"))]),
    ],
)
def test_asked_between_iterations_the_run_ends_there(tmp_path, stop_at, calls):
    stations = Stations(*stop_at)
    result = train(tiny(tmp_path / "run", **SHORT), callbacks=[stations], progress=False)
    assert stations.calls == calls
    assert result.stopped == f"seen {stop_at[1]}" and result.after["sampled"].episodes == 2


def test_asked_in_the_last_iteration_the_run_was_not_stopped(tmp_path):
    config = tiny(tmp_path / "run", **{**SHORT, "num_iterations": 1})
    assert train(config, callbacks=[Stations(1, "evaluate")], progress=False).stopped is None


class Average(Callback):
    """A moving average of returns, and a death."""

    def __init__(self, *, dies_in=None):
        self.average, self.dies_in = 0.1, dies_in

    def on_update(self, state):
        if state.iteration == self.dies_in:
            raise RuntimeError("died")
        self.average = 0.7 * self.average + 0.3 * state.metrics["episode/return"]
        state.metrics["mine/average"] = self.average

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state):
        self.average = state["average"]


class Total(Kept):
    """A logger with a state."""

    def __init__(self):
        super().__init__()
        self.total = 0.0

    def log(self, iteration, metrics):
        self.total += metrics.get("mine/average", 0.0)

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_states_are_those_of_the_checkpoint_a_run_goes_on_from(tmp_path):
    whole, total = [Average(), Average()], Total()
    train(tiny(tmp_path / "whole", **SHORT), callbacks=whole, loggers=[total], progress=False)
    config = tiny(tmp_path / "run", **SHORT)
    with pytest.raises(RuntimeError, match="died") as caught:
        train(config, callbacks=[Average(), Average(dies_in=4)], loggers=[Total()], progress=False)
    assert caught.value.__notes__[0].startswith("continue from iteration 2 with ")
    resumed, again = [Average(), Average()], Total()
    train(config, callbacks=resumed, loggers=[again], resume=True, progress=False)
    assert [each.average for each in resumed] == [each.average for each in whole]
    assert again.total == total.total
    assert metrics_of(config.run_dir) == metrics_of(tmp_path / "whole")
    assert trajectories_of(config.run_dir) == trajectories_of(tmp_path / "whole")


def test_a_state_that_nobody_takes_is_named_and_one_of_a_class_is_told_from_the_next(caplog):
    first, second, new = Average(), Average(), Average()
    first.average, second.average = 1.0, 2.0
    saved = state_dicts([first, second, first, Callback()])
    assert [state["average"] for state in saved.values()] == [1.0, 2.0]
    load_state_dicts([new], saved, warn=True)
    assert new.average == 1.0
    assert "test_callbacks.Average#2, which is not among its callbacks and loggers now" in caplog.text


def test_a_state_that_is_no_json_is_refused_by_name():
    strange = Average()
    strange.average = object()
    with pytest.raises(ValueError, match=r"state_dict\(\) of test_callbacks.Average cannot be written as JSON"):
        state_dicts([strange])


@pytest.mark.parametrize(
    ("extensions", "said"),
    [
        ({"callbacks": [Average]}, "callbacks takes instances of envgym.training.Callback, not <class"),
        ({"loggers": [Kept]}, r"loggers takes objects with a method log\(iteration, metrics\), not <class"),
        ({"loggers": [print]}, "loggers takes objects with a method log"),
    ],
)
def test_what_is_no_callback_or_logger_is_refused(tmp_path, extensions, said):
    with pytest.raises(ValueError, match=said):
        train(tiny(tmp_path / "run"), **extensions)
    assert not (tmp_path / "run").exists()


SCRIPT = """
import sys
from envgym.training import Callback, train
from tiny_runs import tiny

class Second(Callback):
    def on_collect(self, state):
        assert len(state.trajectories) == 3
        if state.rank == 1 and state.iteration == 2:
            state.stop("rank 1 has seen enough")

class Log:
    lines = []
    def log(self, iteration, metrics):
        self.lines.append(iteration)

result = train(tiny(sys.argv[1], warm_start=None, kl=None), callbacks=[Second()], loggers=[Log()], progress=False)
print(f"{result.stopped} {Log.lines}", flush=True)
"""


@pytest.mark.slow
def test_two_ranks_end_with_the_same_iteration_where_one_asks(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, str(tmp_path / "script.py"), str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["rank 1 has seen enough [0, 1, 2]", "rank 1 has seen enough []"]
    assert [line["iteration"] for line in metrics_of(tmp_path / "run")] == [0, 1, 2]
    assert (tmp_path / "run" / "model").is_dir() and (tmp_path / "run" / "checkpoints" / "000002").is_dir()
