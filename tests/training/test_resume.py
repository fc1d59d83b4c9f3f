"""A run is reproducible, and one that was killed goes on as if it had not been."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_runs import metrics_of, tiny, trajectories_of
from transformers import AutoModelForCausalLM

from envgym.errors import CheckpointError
from envgym.training import train

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent.parent / "tiny_runs.py"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny(folder), progress=False)
    return folder


def command(config, *flags):
    path = config.run_dir.with_suffix(".json")
    path.write_text(config.model_dump_json())
    return [sys.executable, str(SCRIPT), str(path), *flags]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()


def assert_same_run(folder, other):
    ours, theirs = metrics_of(folder), metrics_of(other)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a == b
    assert trajectories_of(folder) == trajectories_of(other)
    assert all(torch.equal(w, weights(other)[name]) for name, w in weights(folder).items())


def test_the_same_settings_give_the_same_run(uninterrupted, tmp_path):
    train(tiny(tmp_path / "again"), progress=False)
    assert_same_run(tmp_path / "again", uninterrupted)


def test_another_seed_gives_another_run(uninterrupted, tmp_path):
    train(tiny(tmp_path / "other", seed=4, num_iterations=1), progress=False)
    assert metrics_of(tmp_path / "other")[1] != metrics_of(uninterrupted)[1]


@pytest.mark.parametrize("lines", [2, 4])
def test_a_killed_run_goes_on_as_if_it_had_not_been(uninterrupted, tmp_path, lines):
    """Killed once that many iterations are logged: after 1, before its checkpoint, and after 3, past the first one."""
    config = tiny(tmp_path / "killed")
    process = subprocess.Popen(command(config), env=environment(), stderr=subprocess.PIPE)
    log, deadline = config.run_dir / "metrics.jsonl", time.monotonic() + 300
    while not (log.exists() and log.read_text().count("\n") >= lines):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not (config.run_dir / "model").exists()  # it was really cut
    train(config, resume=True, progress=False)
    assert_same_run(config.run_dir, uninterrupted)


def test_torn_last_lines_and_a_partial_checkpoint_do_not_stop_a_resumption(uninterrupted, tmp_path):
    folder = tmp_path / "torn"
    shutil.copytree(uninterrupted, folder)
    shutil.rmtree(folder / "checkpoints" / "000004")
    (folder / "checkpoints" / ".000004.partial").mkdir()
    (folder / "checkpoints" / "000003").mkdir()  # without state.json: not complete
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"torn": ')
    train(tiny(folder), resume=True, progress=False)
    assert_same_run(folder, uninterrupted)


def test_a_finished_run_can_be_made_longer(uninterrupted, tmp_path):
    folder = tmp_path / "longer"
    shutil.copytree(uninterrupted, folder)
    result = train(tiny(folder, num_iterations=5), resume=True, progress=False)
    assert [line["iteration"] for line in metrics_of(folder)] == [0, 1, 2, 3, 4, 5]
    assert metrics_of(folder)[:5] == metrics_of(uninterrupted)
    assert result.before["sampled"].episodes == 4


def test_resuming_a_finished_run_only_evaluates_it(uninterrupted, tmp_path):
    folder = tmp_path / "finished"
    shutil.copytree(uninterrupted, folder)
    result = train(tiny(folder), resume=True, progress=False)
    assert_same_run(folder, uninterrupted)
    assert result.after["sampled"].episodes == 4
    assert result.example.failure is None


def test_resuming_with_other_settings_names_them(uninterrupted):
    with pytest.raises(
        CheckpointError,
        match=r"other settings in actor\.learning_rate, update\.num_epochs, update\.\w+; resume it with its own",
    ):
        train(tiny(uninterrupted, actor={"learning_rate": 7.0}, update={"num_epochs": 1}), resume=True, progress=False)


def test_resuming_what_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="holds no run"):
        train(tiny(tmp_path / "nothing"), resume=True, progress=False)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_with_a_warning(uninterrupted, tmp_path, caplog):
    folder = tmp_path / "damaged"
    shutil.copytree(uninterrupted, folder)
    shard = next((folder / "checkpoints" / "000004").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:1000])
    train(tiny(folder), resume=True, progress=False)
    assert "000004' is damaged" in caplog.text and "has 1000 bytes" in caplog.text and "000002' is used" in caplog.text
    assert_same_run(folder, uninterrupted)
    names = {entry.name for entry in (folder / "checkpoints").iterdir()}
    assert names == {"000002", "000004", "000004.damaged"}


def test_records_that_were_cut_below_the_checkpoint_are_an_error(uninterrupted, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(uninterrupted, folder)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"metrics.jsonl' is shorter than at the checkpoint"):
        train(tiny(folder), resume=True, progress=False)


def test_two_ranks_train_end_to_end_into_one_run_folder_as_one_rank_does(tmp_path):
    config = tiny(tmp_path / "two", num_iterations=2, dtype="float64")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, *command(config)[1:]], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    alone = tmp_path / "one"
    train(tiny(alone, num_iterations=2, dtype="float64"), progress=False)
    assert {p.name for p in config.run_dir.iterdir()} == {p.name for p in alone.iterdir()}
    for ours, theirs in zip(metrics_of(config.run_dir), metrics_of(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
    ours, theirs = trajectories_of(config.run_dir), trajectories_of(alone)
    assert [r["seed"] for r in ours] == [r["seed"] for r in theirs]
    assert [[t["action_ids"] for t in r["turns"]] for r in ours] == [
        [t["action_ids"] for t in r["turns"]] for r in theirs
    ]
    for name, weight in weights(config.run_dir).items():
        torch.testing.assert_close(weight, weights(alone)[name], rtol=1e-6, atol=1e-6)
    # What two ranks have saved, one can go on with.
    result = train(tiny(config.run_dir, num_iterations=3, dtype="float64"), resume=True, progress=False)
    assert result.metrics["policy/updates"] == 4.0
    assert [line["iteration"] for line in metrics_of(config.run_dir)] == [0, 1, 2, 3]
