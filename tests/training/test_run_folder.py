"""What a run folder is cleared of, and what it never touches."""

from __future__ import annotations

import re

import pytest

from envgym.config import TrainConfig
from envgym.errors import CheckpointError
from envgym.training.recipes import quickstart
from envgym.training.run_folder import CHANGEABLE, CHECKPOINTS, SERVERS, RunFolder, read_config


def test_a_run_that_never_reached_a_checkpoint_gives_way(tmp_path):
    config = quickstart(tmp_path / "run")
    RunFolder.create(config).close()
    (tmp_path / "run" / CHECKPOINTS / ".000000.partial").mkdir(parents=True)
    (tmp_path / "run" / SERVERS / "weights-1").mkdir(parents=True)
    (tmp_path / "run" / SERVERS / "rank0.log").touch()
    folder = RunFolder.create(config)
    assert not (tmp_path / "run" / CHECKPOINTS).exists() and not (tmp_path / "run" / SERVERS).exists()
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


def served(run_dir, **fields):
    """A run that SGLang samples for; `section__field` changes a field."""
    config = quickstart(run_dir).model_dump()
    config["policy"] = {"kind": "sglang"}
    for name, value in fields.items():
        section, _, field = name.partition("__")
        config[section] = {**config[section], field: value} if field else value
    return TrainConfig.model_validate(config)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"policy__urls": ["http://a:1"]}, {"policy__urls": ["http://b:1", "http://c:2"]}),
        ({}, {"policy__urls": ["http://b:1"], "policy__weight_sync": "disk"}),
        ({"policy__urls": ["http://a:1"]}, {"policy__colocated": True, "policy__mem_fraction": 0.5}),
        ({}, {f"policy__{name}_timeout_s": 5.0 for name in ("startup", "generate", "recovery")}),
        ({}, {"rollout__step_timeout_s": None, "rollout__num_threads": 9, "rollout__max_attempts": 2}),
        ({}, {"rollout__concurrency": 3, "update__max_microbatch_tokens": 512, "num_iterations": 99}),
    ],
)
def test_a_run_goes_on_with_other_machinery_and_its_config_says_so(tmp_path, before, now):
    RunFolder.create(served(tmp_path / "run", **before)).close()
    config = served(tmp_path / "run", **now)
    RunFolder.reopen(config).close()
    assert read_config(tmp_path / "run") == config


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"policy__urls": ["http://b:1"], "policy__dtype": "bfloat16"}, "policy.dtype"),
        ({"policy": {"kind": "embedded"}}, "policy.kind"),
        ({"model": {"kind": "folder", "path": "m"}}, "model.kind"),
        ({"rollout__max_turn_tokens": 7, "rollout__num_threads": 9}, "rollout.max_turn_tokens"),
        ({"env__kwargs": {"hops": 2}, "seed": 1}, "env.kwargs.hops, seed"),
        ({"warm_start": None}, "warm_start"),
    ],
)
def test_what_changes_what_is_learned_is_refused_by_name_and_nothing_is_written(tmp_path, now, named):
    begun = served(tmp_path / "run", policy__urls=["http://a:1"])
    RunFolder.create(begun).close()
    with pytest.raises(CheckpointError, match=f"other settings in {re.escape(named)}; resume it"):
        RunFolder.reopen(served(tmp_path / "run", **{"policy__urls": ["http://a:1"], **now}))
    assert read_config(tmp_path / "run") == begun


def test_every_field_that_may_change_exists():
    for path in CHANGEABLE:
        section, _, field = path.partition(".")
        assert section in TrainConfig.model_fields
        if field:
            assert field in type(getattr(served("run"), section)).model_fields, path
