"""What a run folder is cleared of, and what it never touches."""

from __future__ import annotations

import pytest

from envgym.recipes import quickstart
from envgym.run_folder import CHECKPOINTS, RunFolder


def test_a_run_that_never_reached_a_checkpoint_gives_way(tmp_path):
    config = quickstart(tmp_path / "run")
    RunFolder.create(config).close()
    (tmp_path / "run" / CHECKPOINTS / ".000000.partial").mkdir(parents=True)
    folder = RunFolder.create(config)
    assert not (tmp_path / "run" / CHECKPOINTS).exists()
    folder.close()


def test_a_run_with_a_checkpoint_is_kept(tmp_path):
    config = quickstart(tmp_path / "run")
    RunFolder.create(config).close()
    (tmp_path / "run" / CHECKPOINTS / "000000").mkdir(parents=True)
    with pytest.raises(ValueError, match="already holds a run"):
        RunFolder.create(config)
    assert (tmp_path / "run" / CHECKPOINTS / "000000").is_dir()


def test_a_model_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-500").mkdir(parents=True)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ValueError):
        RunFolder.create(quickstart(tmp_path))
    assert (tmp_path / "checkpoints" / "checkpoint-500").is_dir()
    assert (tmp_path / "config.json").read_text() == '{"model_type": "qwen3"}'
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints", "config.json"]


def test_one_process_at_a_time_writes_a_run(tmp_path):
    config = quickstart(tmp_path / "run")
    first = RunFolder.create(config)
    for attempt in (RunFolder.create, RunFolder.reopen):
        with pytest.raises(ValueError, match="another process"):
            attempt(config)
    first.close()
    RunFolder.reopen(config).close()
