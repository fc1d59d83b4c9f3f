"""The examples run as they are, within the length they promise, and learn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def success(script: str, run_dir: Path, *launcher: str) -> tuple[float, float]:
    """Sampled success before and after, as the script prints it."""
    command = [sys.executable, *launcher, str(EXAMPLES / script), str(run_dir)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert finished.returncode == 0, finished.stderr[-4000:]
    match = re.search(r"success: ([\d.]+) -> ([\d.]+)", finished.stdout)
    assert match, finished.stdout
    return float(match[1]), float(match[2])


def test_the_examples_are_short():
    for name in ("train.py", "train_sglang.py", "custom_environment.py"):
        assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 40, name


@pytest.mark.slow
def test_a_custom_environment_is_trained_on(tmp_path):
    before, after = success("custom_environment.py", tmp_path / "run")
    assert before <= 0.5 and after >= 0.8


@pytest.mark.slow
def test_the_training_script_trains_a_tool_using_policy_on_two_ranks(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    before, after = success("train.py", tmp_path / "run", *launcher)
    assert before <= 0.35 and after >= 0.9
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


SHORTENED = """
import runpy
import sys

import envgym
from envgym.training import train

def short(config):
    changes = {
        "num_iterations": 2,
        "warm_start": config.warm_start.model_copy(update={"num_episodes": 64}),
        "rollout": config.rollout.model_copy(update={"episodes_per_iteration": 16}),
        "evaluation": config.evaluation.model_copy(update={"episodes": 8}),
    }
    return train(config.model_copy(update=changes))

envgym.train = short
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_the_served_training_script_runs_on_two_ranks_with_a_server_each(requires_sglang, tmp_path):
    """Shortened, since serving two models on two cores is slow: what it learns is in docs/results.md."""
    (tmp_path / "shortened.py").write_text(SHORTENED)
    run_dir = tmp_path / "run"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [
        sys.executable,
        *launcher,
        str(tmp_path / "shortened.py"),
        str(EXAMPLES / "train_sglang.py"),
        str(run_dir),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert re.search(r"sampled success: [\d.]+ -> [\d.]+", finished.stdout), finished.stdout
    assert {log.name for log in (run_dir / "servers").glob("*.log")} == {"rank0.log", "rank1.log"}
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()[1:]]
    assert len(lines) == 2
    assert all(line["mismatch/max_abs"] < 1e-4 for line in lines), "the learner scores what was sampled otherwise"
    seeds = [json.loads(line)["seed"] for line in (run_dir / "trajectories.jsonl").read_text().splitlines()]
    assert len(seeds) == len(set(seeds)) == 2 * 16
