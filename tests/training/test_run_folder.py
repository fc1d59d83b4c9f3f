"""What a run folder is cleared of and never touches, and what a full disk does to it."""

from __future__ import annotations

import re

import pytest
from full_disk import files_of_at_most
from tiny_learner import make_trajectory
from tiny_runs import tiny

from envgym.config import TrainConfig
from envgym.errors import CheckpointError, StorageError
from envgym.training import train
from envgym.training.recipes import quickstart
from envgym.training.run_folder import (
    CHANGEABLE,
    CHECKPOINTS,
    SERVERS,
    TRAJECTORIES,
    RunFolder,
    read_config,
)


def test_a_run_that_never_reached_a_checkpoint_gives_way(tmp_path):
    config = quickstart(tmp_path / "run")
    RunFolder.create(config).close()
    (tmp_path / "run" / CHECKPOINTS / ".000000.partial").mkdir(parents=True)
    (tmp_path / "run" / SERVERS / "weights-1").mkdir(parents=True)
    (tmp_path / "run" / SERVERS / "rank0.log").touch()
    folder = RunFolder.create(config)
    assert not (tmp_path / "run" / CHECKPOINTS).exists() and not (tmp_path / "run" / SERVERS).exists()
    folder.close()


OLD_CONFIG = """{
  "run_dir": "runs/old", "env": {"id": "envgym/PointerChase-v0", "max_turns": null, "kwargs": {}},
  "model": {"kind": "new", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": null,
    "context_length": 512, "words": ["get", "answer", "start"]},
  "renderer": "chatml", "policy": {"kind": "embedded"}, "num_iterations": 30, "seed": 0,
  "advantages": {"gamma": 0.5, "discount_per": "turn", "gae_lambda_policy": 0.9, "gae_lambda_value": 1.0,
    "gae_length_alpha": null, "gae_lambda_min": 0.0, "whiten": "minibatch", "recompute_each_epoch": true},
  "policy_loss": {"clip_low": 0.1, "clip_high": 0.28, "dual_clip": 3.0, "entropy_coefficient": 0.01,
    "aggregation": "seq-mean-token-sum", "importance": "tis", "importance_cap": 1.5}
}"""
"""What a run wrote before estimator and loss were seams."""


def test_a_stored_configuration_of_an_earlier_version_is_still_read(tmp_path):
    (tmp_path / "config.json").write_text(OLD_CONFIG)
    config = read_config(tmp_path)
    assert config.run_dir == tmp_path and config.num_iterations == 30
    assert (config.estimator.kind, config.estimator.gamma, config.estimator.whiten) == ("gae", 0.5, "minibatch")
    assert config.estimator.recompute_each_epoch and config.estimator.gae_lambda_policy == 0.9
    assert (config.loss.kind, config.loss.clip_low, config.loss.dual_clip) == ("ppo_clip", 0.1, 3.0)
    assert (config.loss.importance, config.loss.aggregation) == ("tis", "seq-mean-token-sum")
    assert read_config(tmp_path) == TrainConfig.model_validate(config.model_dump())


@pytest.mark.parametrize(("old", "new"), [("advantages", "estimator"), ("policy_loss", "loss")])
def test_the_old_name_of_a_section_in_a_new_configuration_is_an_error_that_says_the_new_one(old, new):
    with pytest.raises(ValueError, match=f"the section '{old}' is called '{new}' now"):
        TrainConfig.model_validate({"run_dir": "x", "env": {"id": "e"}, old: {}})


@pytest.mark.parametrize("config", ['{"model_type": "qwen3"}', "[1]"])
def test_a_model_folder_of_somebody_else_is_left_alone(tmp_path, config):
    (tmp_path / "checkpoints" / "checkpoint-500").mkdir(parents=True)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError):
        RunFolder.create(quickstart(tmp_path))
    assert (tmp_path / "checkpoints" / "checkpoint-500").is_dir()
    assert (tmp_path / "config.json").read_text() == config
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


def test_trajectories_that_find_no_room_say_from_where_to_continue(tmp_path):
    folder = RunFolder.create(tiny(tmp_path / "run"))
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
    folder.close()


def test_a_config_that_finds_no_room_leaves_no_run_behind(tmp_path):
    with files_of_at_most(10), pytest.raises(StorageError, match=r"config.json' could not be written"):
        RunFolder.create(tiny(tmp_path / "run"))
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == [".lock"]
    RunFolder.create(tiny(tmp_path / "run")).close()


@pytest.mark.slow
def test_a_run_that_met_a_full_disk_ends_where_it_would_have_once_there_is_room(tmp_path):
    """The limit lies between a small record and a model, first for the checkpoint, then for the exported model."""
    sections = {"warm_start": None, "kl": None, "num_iterations": 2, "checkpoint": {"every": 1}}
    whole = train(tiny(tmp_path / "whole", **sections), progress=False)
    config = tiny(tmp_path / "run", **{**sections, "num_iterations": 1})
    train(config, progress=False)
    longer = tiny(tmp_path / "run", **sections)
    with files_of_at_most(60_000), pytest.raises(StorageError, match=r"000002' could not be .*000001' before it is"):
        train(longer, resume=True, progress=False)
    with files_of_at_most((whole.run_dir / TRAJECTORIES).stat().st_size + 1), pytest.raises(StorageError):
        train(longer, resume=True, progress=False)
    result = train(longer, resume=True, progress=False)
    assert (result.model_dir / "model.safetensors").read_bytes() == (whole.model_dir / "model.safetensors").read_bytes()
    with files_of_at_most(20_000), pytest.raises(StorageError, match=r"run/model' could not be written \(.*export it"):
        train(longer, resume=True, progress=False)
    assert (result.model_dir / "model.safetensors").read_bytes() == (whole.model_dir / "model.safetensors").read_bytes()
    assert not list(result.run_dir.glob(".model.*"))
