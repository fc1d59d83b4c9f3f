"""What a full disk does to a run's records: an error that says how to go on, and nothing half-written."""

from __future__ import annotations

import math

import pytest
from full_disk import files_of_at_most
from tiny_learner import make_trajectory
from tiny_runs import tiny

from envgym.errors import StorageError
from envgym.training import train
from envgym.training.run_folder import CHECKPOINTS, EVENTS, METRICS, TRAJECTORIES, RunFolder, continuation, read_metrics


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder.create(tiny(tmp_path / "run"))
    yield folder
    folder.close()


def test_metrics_that_find_no_room_name_the_file_and_leave_no_half_line(folder):
    folder.log(1, {"a": 1.0})
    size = (folder.path / METRICS).stat().st_size
    with files_of_at_most(size + 10), pytest.raises(StorageError) as caught:
        folder.log(2, {"a": 2.0})
    said = str(caught.value)
    assert said.startswith(f"'{folder.path / METRICS}' could not be written (") and " MB free" in said
    assert "has no checkpoint yet: the same command starts the run again" in said and "\n" not in said
    assert (folder.path / METRICS).stat().st_size == size
    folder.log(2, {"a": 2.0})
    assert [line["iteration"] for line in read_metrics(folder.path)] == [1, 2]


def test_trajectories_that_find_no_room_say_from_where_to_continue(folder):
    for name in ("000000", "000020"):
        (folder.path / CHECKPOINTS / name).mkdir(parents=True)
        (folder.path / CHECKPOINTS / name / "state.json").write_text("{}")
    (folder.path / CHECKPOINTS / "000030").mkdir()  # empty, so it was never a checkpoint
    trajectory = make_trajectory(1)
    folder.record([trajectory])
    before = (folder.path / TRAJECTORIES).read_bytes()
    with files_of_at_most(len(before) + 10), pytest.raises(StorageError) as caught:
        folder.record([trajectory, trajectory])
    assert f"'{folder.path / TRAJECTORIES}' could not be written" in str(caught.value)
    how = f"continue from iteration 20 with train(config, resume=True) or `envgym train --resume {folder.path}`"
    assert how in str(caught.value)
    assert (folder.path / TRAJECTORIES).read_bytes() == before


def test_events_that_find_no_room_are_an_error_and_not_a_hang(folder):
    folder.log(1, {"a": 1.0})
    [events] = (folder.path / EVENTS).iterdir()
    size = events.stat().st_size
    assert size > (folder.path / METRICS).stat().st_size + 30  # so that the metrics still find room
    with (
        files_of_at_most(size + 5),
        pytest.raises(StorageError, match=f"'{folder.path / EVENTS}' could not be written"),
    ):
        folder.log(2, {"a": 2.0})


def test_a_config_that_finds_no_room_leaves_no_run_behind(tmp_path):
    with files_of_at_most(10), pytest.raises(StorageError, match=r"config.json' could not be written"):
        RunFolder.create(tiny(tmp_path / "run"))
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == [".lock"]
    RunFolder.create(tiny(tmp_path / "run")).close()


def test_tensorboard_reads_what_was_logged_and_forgets_what_was_cut(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for iteration in (0, 1, 2):
        folder.log(iteration, {"a/b": iteration + 0.5, "bad": math.nan})
    folder.close()
    again = RunFolder.reopen(tiny(folder.path))
    again.log(2, {"a/b": 7.0})  # a run that goes on from the checkpoint of iteration 1
    again.close()
    events = EventAccumulator(str(folder.path / EVENTS))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a/b")] == [(0, 0.5), (1, 1.5), (2, 7.0)]
    assert math.isnan(events.Scalars("bad")[0].value)


def test_how_a_run_goes_on_depends_on_its_checkpoints(tmp_path):
    assert continuation(tmp_path) == f"'{tmp_path}' has no checkpoint yet: the same command starts the run again"
    (tmp_path / CHECKPOINTS / "000007").mkdir(parents=True)
    (tmp_path / CHECKPOINTS / "000007" / "state.json").write_text("{}")
    assert continuation(tmp_path).startswith("continue from iteration 7 with ")


@pytest.mark.slow
def test_a_run_that_met_a_full_disk_ends_where_it_would_have_once_there_is_room(tmp_path):
    """The limit lies between a small record and a model, first for the checkpoint, then for the exported model."""
    sections = {"warm_start": None, "kl": None, "num_iterations": 2, "checkpoint": {"every": 1}}
    whole = train(tiny(tmp_path / "whole", **sections), progress=False)
    config = tiny(tmp_path / "run", **{**sections, "num_iterations": 1})
    train(config, progress=False)
    longer = tiny(tmp_path / "run", **sections)
    with (
        files_of_at_most(60_000),
        pytest.raises(StorageError, match=r"000002' could not be .*000001' before it is"),
    ):
        train(longer, resume=True, progress=False)
    with files_of_at_most((whole.run_dir / TRAJECTORIES).stat().st_size + 1), pytest.raises(StorageError):
        train(longer, resume=True, progress=False)
    result = train(longer, resume=True, progress=False)
    assert (result.model_dir / "model.safetensors").read_bytes() == (whole.model_dir / "model.safetensors").read_bytes()
    with files_of_at_most(20_000), pytest.raises(StorageError, match=r"run/model' could not be written \(.*export it"):
        train(longer, resume=True, progress=False)
    assert (result.model_dir / "model.safetensors").read_bytes() == (whole.model_dir / "model.safetensors").read_bytes()
    assert not list(result.run_dir.glob(".model.*"))
