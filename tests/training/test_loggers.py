"""Metrics as lines and events: whole, or an error that says how to go on."""

from __future__ import annotations

import json
import math

import pytest
from full_disk import files_of_at_most

from envgym.errors import StorageError
from envgym.training.loggers import MetricsFile, TensorBoard
from envgym.training.run_folder import EVENTS, METRICS, read_metrics


def test_metrics_that_are_not_finite_are_written_as_null(tmp_path):
    MetricsFile(tmp_path).log(1, {"a": math.nan, "b": math.inf, "c": 2.0})
    assert json.loads((tmp_path / METRICS).read_text()) == {"iteration": 1, "a": None, "b": None, "c": 2.0}


def test_metrics_that_find_no_room_name_the_file_and_leave_no_half_line(tmp_path):
    logger = MetricsFile(tmp_path)
    logger.log(1, {"a": 1.0})
    size = (tmp_path / METRICS).stat().st_size
    with files_of_at_most(size + 10), pytest.raises(StorageError) as caught:
        logger.log(2, {"a": 2.0})
    said = str(caught.value)
    assert said.startswith(f"'{tmp_path / METRICS}' could not be written (") and " MB free" in said
    assert "has no checkpoint yet: the same command starts the run again" in said and "\n" not in said
    assert (tmp_path / METRICS).stat().st_size == size
    logger.log(2, {"a": 2.0})
    assert [line["iteration"] for line in read_metrics(tmp_path)] == [1, 2]


def test_events_that_find_no_room_are_an_error_and_not_a_hang(tmp_path):
    logger = TensorBoard(tmp_path)
    logger.log(1, {"a": 1.0})
    [events] = (tmp_path / EVENTS).iterdir()
    with (
        files_of_at_most(events.stat().st_size + 5),
        pytest.raises(StorageError, match=f"'{tmp_path / EVENTS}' could not be written"),
    ):
        logger.log(2, {"a": 2.0})
    logger.close()


def test_tensorboard_reads_what_was_logged_and_forgets_what_was_cut(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoard(tmp_path)
    for iteration in (0, 1, 2):
        logger.log(iteration, {"a/b": iteration + 0.5, "bad": math.nan})
    logger.close()
    again = TensorBoard(tmp_path)
    again.log(2, {"a/b": 7.0})  # a run that goes on from the checkpoint of iteration 1
    again.close()
    events = EventAccumulator(str(tmp_path / EVENTS))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a/b")] == [(0, 0.5), (1, 1.5), (2, 7.0)]
    assert math.isnan(events.Scalars("bad")[0].value)
