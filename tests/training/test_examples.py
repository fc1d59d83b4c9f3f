"""The examples run as they are, within the length they promise, and learn."""

from __future__ import annotations

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
    for name in ("train.py", "custom_environment.py"):
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
