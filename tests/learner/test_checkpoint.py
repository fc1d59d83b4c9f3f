"""A checkpoint brings everything back exactly, is whole or not there, and says what is wrong with it."""

import json

import pytest
import torch
from rank_jobs import assert_continues, load_then_train, save_then_train, snapshot
from tiny_learner import EVERYTHING, make_config, make_learner, make_samples

from envgym.errors import CheckpointError
from envgym.learner.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_restored_learner_goes_on_exactly_as_the_saved_one(tmp_path, dtype):
    sections = {**EVERYTHING, "dtype": dtype}
    saved = save_then_train(str(tmp_path), sections)
    loaded = load_then_train(str(latest_checkpoint(tmp_path)), sections)
    assert_continues(loaded, saved, rel=0)


def test_a_schedule_goes_on_where_it_was(tmp_path):
    """The rates of actor and critic that follow a restoration are those that would have followed without one."""

    def rates(learner):
        optimizers = (learner.actor_optimizer, learner.critic_optimizer)
        return [group["lr"] for optimizer in optimizers for group in optimizer.adam.param_groups]

    optimizer = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_updates": 2}
    config = make_config(actor=optimizer, critic={"optimizer": {**optimizer, "learning_rate": 3e-3}})
    learner, other, seen = make_learner(config), make_learner(config), []
    for iteration in (1, 2, 3, 4):
        learner.train_on(make_samples(), seed=iteration)
        seen.append(rates(learner))
        if iteration == 3:
            save_checkpoint(tmp_path, learner, {}, iteration=3, keep=1)
    load_checkpoint(tmp_path / "000003", other)
    other.train_on(make_samples(), seed=4)
    assert seen[0] == [5e-4, 1.5e-3] and seen[2] == [1e-3, 3e-3]  # warming up, and at the peak
    assert rates(other) == seen[3] == pytest.approx([5e-4, 1.5e-3])  # half of the decay
    assert other.actor_optimizer.adam.param_groups[0]["params"][0] is next(other.actor.parameters())


def test_a_checkpoint_before_the_first_update_can_be_loaded(tmp_path):
    learner = make_learner(make_config())
    save_checkpoint(tmp_path, learner, {}, iteration=0, keep=1)
    other = make_learner(make_config())
    other.train_on(make_samples(), seed=0)
    state = load_checkpoint(tmp_path / "000000", other)
    assert state["learner"]["iteration"] == 0
    assert (other.actor_optimizer.num_updates, other.critic_optimizer.num_updates) == (0, 0)
    a, b = learner.train_on(make_samples(), seed=1), other.train_on(make_samples(), seed=1)
    assert a == b
    ours, theirs = snapshot(learner), snapshot(other)
    assert all(torch.equal(tensor, theirs["adam"][name]) for name, tensor in ours["adam"].items())


def test_only_the_newest_are_kept(tmp_path):
    learner = make_learner(make_config())
    with pytest.raises(CheckpointError, match="holds no checkpoint to resume from"):
        latest_checkpoint(tmp_path)
    for iteration in (1, 2, 3, 10):
        path = save_checkpoint(tmp_path, learner, {}, iteration=iteration, keep=2)
        assert path.name == f"{iteration:06d}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "000010"]
    assert latest_checkpoint(tmp_path).name == "000010"


def test_saving_an_iteration_again_replaces_it(tmp_path):
    learner = make_learner(make_config())
    save_checkpoint(tmp_path, learner, {"take": 1}, iteration=1, keep=2)
    path = save_checkpoint(tmp_path, learner, {"take": 2}, iteration=1, keep=2)
    assert json.loads((path / "state.json").read_text())["take"] == 2


def test_a_partial_folder_is_ignored_and_cleared_by_the_next_save(tmp_path):
    learner = make_learner(make_config())
    save_checkpoint(tmp_path, learner, {}, iteration=1, keep=2)
    (tmp_path / ".000002.partial").mkdir()
    (tmp_path / ".000002.partial" / "rubbish").write_text("x")
    (tmp_path / "000003").mkdir()
    assert latest_checkpoint(tmp_path).name == "000001"
    path = save_checkpoint(tmp_path, learner, {}, iteration=2, keep=2)
    assert not (path / "rubbish").exists()
    assert latest_checkpoint(tmp_path).name == "000002"


def test_a_checkpoint_of_another_model_is_an_error(tmp_path):
    from transformers import Qwen3ForCausalLM

    path = save_checkpoint(tmp_path, make_learner(make_config()), {}, iteration=1, keep=1)
    config = make_learner(make_config()).actor.lm.config
    config.intermediate_size = 48
    other = make_learner(make_config(), Qwen3ForCausalLM(config).double())
    with pytest.raises(CheckpointError, match=r"'.*000001' cannot be loaded \(.+\); there is no other") as one:
        load_checkpoint(path, other)
    assert "\n" not in str(one.value)
