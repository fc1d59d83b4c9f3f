"""What `train` says to a caller: about what it was given, about what is hardly meant, and when it is interrupted."""

from __future__ import annotations

import logging
import traceback

import pytest
from fakes import registered
from tiny_runs import tiny

import envgym
from envgym.engines.embedded.tiny_model import create_model
from envgym.errors import CheckpointError, CollectionError, ModelError, UnknownIdError
from envgym.rollout.seeds import FIRST_TRAINING_SEED
from envgym.training import train
from envgym.training.recipes import RECIPES
from envgym.training.run import _advice
from envgym.training.run_folder import CHECKPOINTS, RunFolder, continuation
from envgym.training.tracebacks import raised_by_envgym

SHORT = {"num_iterations": 1, "warm_start": None, "evaluation": {"episodes": 2}, "kl": None}
TINY_MODEL = {"kind": "new", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}


def frames(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


# -- what is no configuration ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run_dir": "r"}, r"not a dict; make one with TrainConfig\(\*\*fields\)"),
        ("quickstart", "not the str 'quickstart'; call a function of envgym.training.recipes, or read a file"),
        (envgym.TrainConfig, r"not a ModelMetaclass; make one with TrainConfig\(\.\.\.\)"),
        (None, r"not a NoneType; make one with TrainConfig\(\.\.\.\)"),
    ],
)
def test_what_is_no_configuration_is_answered_with_what_to_pass(given, said):
    with pytest.raises(ValueError, match=f"^train takes an envgym.TrainConfig, {said}"):
        train(given)


# -- tracebacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "kind"),
    [
        ({"env": {"id": "envgym/Nope-v0"}}, UnknownIdError),
        ({"env": {"id": "envgym/PointerChase-v0", "kwargs": {"hop": 1}}}, ValueError),
        ({"model": {"kind": "folder", "path": "nowhere"}}, ModelError),
        ({"renderer": "qwen9"}, ModelError),
    ],
)
def test_a_users_mistake_ends_at_the_users_line(tmp_path, sections, kind):
    with pytest.raises(kind) as caught:
        train(tiny(tmp_path / "run", **{**SHORT, **sections}), progress=False)
    assert set(frames(caught.value)[1:]) <= {"train", "_train"}
    cause = caught.value.__cause__
    assert cause is None or cause.__traceback__ is None
    assert caught.value.__suppress_context__


def test_nothing_to_resume_ends_there_too(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        train(tiny(tmp_path / "none"), resume=True, progress=False)
    assert set(frames(caught.value)[1:]) <= {"train", "_train"}


def test_where_an_environment_went_wrong_is_kept(tmp_path):
    """A `ValueError` of somebody else's code is not cut: the place is what its author needs."""

    def broken(**kwargs):
        return int("not a number")

    config = tiny(tmp_path / "run", **{**SHORT, "env": {"id": registered("Broken", broken)}})
    with pytest.raises(ValueError, match="invalid literal") as caught:
        train(config, progress=False)
    assert frames(caught.value)[-1] == "broken"


def test_the_frames_that_are_cut_are_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, logger="envgym.training.tracebacks"), pytest.raises(UnknownIdError):
        train(tiny(tmp_path / "run", **SHORT, env={"id": "envgym/Nope-v0"}), progress=False)
    assert "in _make_env" in caplog.text


def test_whose_an_error_is_is_told_by_where_it_was_raised():
    with pytest.raises(ValueError) as ours:
        envgym.make("envgym/Nope-v0")
    with pytest.raises(ValueError) as theirs:
        int("x")
    assert raised_by_envgym(ours.value) and not raised_by_envgym(theirs.value)


def test_episodes_that_keep_failing_end_in_a_short_error(tmp_path):
    env_id = registered("DeadShort", kwargs={"fail_reset": lambda seed: seed >= 2**32})
    with pytest.raises(CollectionError, match="the sandbox did not start") as caught:
        train(tiny(tmp_path / "run", env={"id": env_id}, **SHORT), progress=False)
    assert set(frames(caught.value)[1:]) <= {"train", "_train"}
    assert caught.value.__notes__ == [continuation(tmp_path / "run")]
    assert caught.value.__notes__[0].startswith("continue from iteration 0 with train(config, resume=True) or ")


def test_an_error_that_ends_no_run_says_nothing_of_going_on(tmp_path):
    config = tiny(tmp_path / "run", **SHORT)
    RunFolder.create(config).close()
    (config.run_dir / CHECKPOINTS / "000002").mkdir(parents=True)
    (config.run_dir / CHECKPOINTS / "000002" / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds a run") as caught:
        train(config, progress=False)
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(CheckpointError) as caught:  # the checkpoint is damaged
        train(config, resume=True, progress=False)
    assert not hasattr(caught.value, "__notes__")


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupting(seed):
    """As Ctrl-C in the main thread, where the first prompt is looked at."""
    if seed == FIRST_TRAINING_SEED:
        raise KeyboardInterrupt
    return False


def test_an_interruption_is_passed_on_and_says_how_the_run_goes_on(tmp_path):
    env_id = registered("Interrupted", kwargs={"fail_reset": interrupting})
    config = tiny(tmp_path / "run", env={"id": env_id}, **SHORT)
    for checkpoint, note in (
        (None, f"'{config.run_dir}' has no checkpoint yet: the same command starts the run again"),
        ("000003", "continue from iteration 3 with train(config, resume=True) or `envgym train --resume "),
    ):
        if checkpoint is not None:
            (config.run_dir / "checkpoints" / checkpoint).mkdir(parents=True)
            (config.run_dir / "checkpoints" / checkpoint / "state.json").write_text("{}")
        with pytest.raises(KeyboardInterrupt) as caught:
            train(config, resume=checkpoint is not None, progress=False)
        assert len(caught.value.__notes__) == 1 and caught.value.__notes__[0].startswith(note)
        assert set(frames(caught.value)[1:]) <= {"train", "_train"}


# -- what is legal and hardly meant ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"actor": {}}, "actor.learning_rate is 1e-06, which suits large pretrained models; a new random model hardly"),
        ({"rollout": {"max_turn_tokens": 193}}, r"rollout.max_turn_tokens \(193\) is more than the whole context of t"),
    ],
)
def test_a_setting_that_cannot_work_is_warned_of_at_the_start(tmp_path, caplog, sections, said):
    rollout = {**tiny(tmp_path / "run").rollout.model_dump(), **sections.get("rollout", {})}
    config = tiny(tmp_path / "run", **{**SHORT, **sections, "rollout": rollout, "env": {"id": "test/Nope-v0"}})
    with pytest.raises(UnknownIdError):  # the warning comes before any work
        train(config, progress=False)
    [record] = [record for record in caplog.records if record.name == "envgym.training"]
    assert record.levelno == logging.WARNING and record.getMessage().startswith(said.replace("\\", ""))


def test_the_context_of_a_model_folder_is_known_too(tmp_path, caplog):
    folder = create_model(tmp_path / "model", **{k: v for k, v in TINY_MODEL.items() if k != "kind"}, context_length=64)
    sections = {"model": {"kind": "folder", "path": str(folder)}, "rollout": {"max_turn_tokens": 65}, "actor": {}}
    with pytest.raises(UnknownIdError):
        train(tiny(tmp_path / "run", **{**SHORT, **sections, "env": {"id": "test/Nope-v0"}}), progress=False)
    [record] = [record for record in caplog.records if record.name == "envgym.training"]  # pretrained: the rate is fine
    assert "max_turn_tokens (65) is more than the whole context of the model (64)" in record.getMessage()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_not_warned_of(tmp_path, recipe):
    assert _advice(RECIPES[recipe](tmp_path / "run")) == []
