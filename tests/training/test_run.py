"""What `train` says to a caller: of what does not fit or is hardly meant, and how to go on when it ends early."""

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from fakes import registered
from pydantic import ValidationError
from tiny_runs import tiny

import envgym
from envgym.engines.embedded.tiny_model import create_model
from envgym.errors import CheckpointError, CollectionError, ModelError, UnknownIdError, UnplayableError
from envgym.rollout.collector import FIRST_TRAINING_SEED
from envgym.training import train
from envgym.training.run_folder import CHECKPOINTS, RunFolder, continuation

SCRIPT = Path(__file__).parent.parent / "tiny_runs.py"
SHORT = {"num_iterations": 1, "warm_start": None, "evaluation": {"episodes": 2}, "kl": None}
WORLD = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"run_dir": "r"}, "{'run_dir': 'r'}"),
        ("quickstart", "'quickstart'"),
        (envgym.TrainConfig, "<class"),
        (None, "None"),
    ],
)
def test_what_is_no_configuration_is_answered_with_what_to_pass(given, named):
    with pytest.raises(
        ValueError, match=f"^train takes an envgym.TrainConfig, not {named}.*; call a function of envgym"
    ):
        train(given)


# -- configurations that do not fit ------------------------------------------------------------------------------------


def test_an_environment_that_always_raises_ends_the_run_with_its_failure(tmp_path):
    env_id = registered("Dead", kwargs={"fail_reset": lambda seed: seed >= 2**32})
    said = r"commonest failure so far .* OSError: the sandbox did not start"
    with pytest.raises(CollectionError, match=said) as caught:
        train(tiny(tmp_path / "run", env={"id": env_id}, **SHORT), progress=False)
    assert caught.value.__notes__ == [continuation(tmp_path / "run")]
    assert caught.value.__notes__[0].startswith("continue from iteration 0 with train(config, resume=True) or ")
    assert not torch.distributed.is_initialized()
    train(tiny(tmp_path / "next", env={"id": registered("Alive")}, **SHORT), progress=False)  # nothing is stuck


@pytest.mark.parametrize(
    ("sections", "kind", "said"),
    [
        ({"env": {"id": "envgym/PointerChas-v0"}}, UnknownIdError, r"Did you mean 'envgym/PointerChase-v0'\?"),
        (
            {"env": {"id": "envgym/PointerChase-v0", "kwargs": {"hop": 1}}},
            ValueError,
            "takes no argument 'hop'; it takes .*hops",
        ),
        ({"model": {"kind": "folder", "path": "nowhere"}}, ModelError, "The model folder 'nowhere' does not exist"),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_no_run_behind(tmp_path, sections, kind, said):
    with pytest.raises(kind, match=said):
        train(tiny(tmp_path / "run", **sections), progress=False)
    assert not (tmp_path / "run").exists()  # so that the same command works once the mistake is corrected


@pytest.mark.parametrize(
    ("section", "where", "what"),
    [
        ({"rollout": {"temprature": 1.0}}, "rollout.temprature", "Extra inputs are not permitted"),
        ({"rollout": {"temperature": 0.0}}, "rollout.temperature", "greater than 0"),
        ({"estimator": {"gamma": 1.5}}, "estimator.gae.gamma", "less than or equal to 1"),
        ({"loss": {"aggregation": "mean"}}, "loss.ppo_clip.aggregation", "'token-mean', 'seq-mean-token-sum'"),
        ({"actor": {"learning_rate": float("nan")}}, "actor.learning_rate", "finite number"),
        ({"model": {"kind": "old"}}, "model", "'new', 'folder'"),
        (
            {"rollout": {"episodes_per_iteration": 2}, "update": {"num_minibatches": 4}},
            "episodes_per_iteration (2) is smaller",
            "smaller than update.num_minibatches (4)",
        ),
    ],
)
def test_a_wrong_field_or_value_is_named(tmp_path, section, where, what):
    with pytest.raises(ValidationError) as caught:
        tiny(tmp_path / "run", **section)
    assert where in str(caught.value) and what in str(caught.value)


def test_a_run_folder_in_use_is_refused_and_left_alone(tmp_path):
    run_dir = tmp_path / "run"
    RunFolder.create(tiny(run_dir)).close()
    (run_dir / CHECKPOINTS / "000000").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"already holds a run; continue it with resume=True \(--resume\)"):
        train(tiny(run_dir), progress=False)
    assert (run_dir / CHECKPOINTS / "000000").is_dir()
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="is not an empty folder"):
        train(tiny(tmp_path), progress=False)
    with pytest.raises(ValueError, match="is not an empty folder"):
        train(tiny(tmp_path / "thesis.txt"), progress=False)


def test_a_vocabulary_mismatch_is_named(tmp_path):
    folder = create_model(tmp_path / "model", **WORLD)
    more = create_model(tmp_path / "more", **WORLD, words=("extra", "words"))
    (folder / "tokenizer.json").write_text((more / "tokenizer.json").read_text())
    with pytest.raises(ModelError, match=r"Vocabulary mismatch in '.*model'"):
        train(tiny(tmp_path / "run", model={"kind": "folder", "path": str(folder)}), progress=False)
    assert not (tmp_path / "run").exists()


def test_a_context_shorter_than_the_first_prompt_is_an_error(tmp_path):
    model = {"kind": "new", **WORLD, "context_length": 32}
    with pytest.raises(UnplayableError, match=r"the first prompt has \d+ tokens but the policy's context holds 32"):
        train(tiny(tmp_path / "run", **{**SHORT, "model": model}), progress=False)


@pytest.mark.slow
def test_fewer_episodes_than_ranks_is_one_clear_sentence(tmp_path):
    config = tiny(
        tmp_path / "run", rollout={"episodes_per_iteration": 1}, update={"num_epochs": 1, "num_minibatches": 1}
    )
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(tmp_path / "config.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert "episodes_per_iteration (1) is smaller than the number of ranks (2)" in done.stderr
    assert not (tmp_path / "run").exists()


# -- how to go on -----------------------------------------------------------------------------------------------------


def test_where_an_environment_went_wrong_is_kept(tmp_path):
    def broken(**kwargs):
        return int("not a number")

    config = tiny(tmp_path / "run", **{**SHORT, "env": {"id": registered("Broken", broken)}})
    with pytest.raises(ValueError, match="invalid literal") as caught:
        train(config, progress=False)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


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


# -- what is legal and hardly meant ------------------------------------------------------------------------------------


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
    folder = create_model(tmp_path / "model", **WORLD, context_length=64)
    sections = {"model": {"kind": "folder", "path": str(folder)}, "rollout": {"max_turn_tokens": 65}, "actor": {}}
    with pytest.raises(UnknownIdError):
        train(tiny(tmp_path / "run", **{**SHORT, **sections, "env": {"id": "test/Nope-v0"}}), progress=False)
    [record] = [record for record in caplog.records if record.name == "envgym.training"]  # pretrained: the rate is fine
    assert "max_turn_tokens (65) is more than the whole context of the model (64)" in record.getMessage()


# -- the process -------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, random, signal, sys, threading, warnings
import gymnasium, numpy, torch, torch.distributed.fsdp, torch.distributed.checkpoint.state_dict, transformers

def state():
    return {
        "random": hash(random.getstate()),
        "numpy": hash(numpy.random.get_state()[1].tobytes()),
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "warnings": repr(warnings.filters),
        "showwarning": repr(warnings.showwarning),
        "environ": dict(os.environ),
        "dtype": repr(torch.get_default_dtype()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "signals": {s.name: repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
        "excepthook": repr(sys.excepthook),
        "directory": os.getcwd(),
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "running": sorted(thread.name for thread in threading.enumerate()),
        "group": torch.distributed.is_initialized(),
    }

def changed(before):
    return sorted(name for name, value in state().items() if value != before[name])

random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
found = state()
import envgym.training
after_import = changed(found)
from tiny_runs import tiny
envgym.training.train(tiny(sys.argv[1] + "/run", num_iterations=1, torch_threads=2))
print(json.dumps([after_import, changed(found)]), flush=True)
"""


@pytest.mark.slow
def test_a_script_finds_its_process_as_it_left_it(tmp_path):
    (tmp_path / "script.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == [[], []]
