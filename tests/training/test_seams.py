"""A loss and an estimator of a script's own: the run names them, and only the script can go on with it."""

from __future__ import annotations

import json

import pytest
from tiny_runs import metrics_of, tiny

from envgym.cli.main import main
from envgym.training import export_run, train

SECTIONS = {
    "num_iterations": 2,
    "warm_start": None,
    "kl": None,
    "critic": {},
    "evaluation": {"episodes": 2},
    "checkpoint": {"every": 1, "keep": 9},
    "loss": {"entropy_coefficient": 0.01, "aggregation": "seq-mean-token-sum"},
    "estimator": {"whiten": "none"},
}


class Returns:
    """The return of a trajectory on each of its action tokens."""

    needs_critic = False

    def __call__(self, batch):
        return batch.rewards.sum(dim=1, keepdim=True) * batch.action_mask, None


def plain_gradient(inputs):
    return inputs.aggregate(-inputs.logprobs * inputs.advantages), {}


OWN = {"loss": plain_gradient, "estimator": Returns()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tiny(tmp_path_factory.mktemp("own") / "run", **SECTIONS), **OWN, progress=False)


def test_the_stored_configuration_names_what_was_handed_over_and_keeps_the_common_settings(run):
    stored = json.loads((run.run_dir / "config.json").read_text())
    whitening = {"whiten": "none", "recompute_each_epoch": False}
    assert stored["estimator"] == {"kind": "custom", "name": f"{__name__}:Returns", "needs_critic": False, **whitening}
    assert stored["loss"]["kind"] == "custom" and stored["loss"]["name"] == f"{__name__}:plain_gradient"
    assert (stored["loss"]["entropy_coefficient"], stored["loss"]["aggregation"]) == (0.01, "seq-mean-token-sum")
    assert not [name for line in metrics_of(run.run_dir) for name in line if name.startswith("critic/")]


def test_resuming_it_from_the_command_line_is_refused_and_names_the_script(run, capsys):
    assert main(["train", "--resume", str(run.run_dir)]) == 2
    said = capsys.readouterr().err
    assert f"{__name__}:plain_gradient" in said and "run that script" in said and "Traceback" not in said


def test_the_script_goes_on_as_if_it_had_never_stopped(run, tmp_path):
    half = tiny(tmp_path / "half", **{**SECTIONS, "num_iterations": 1})
    train(half, **OWN, progress=False)
    train(tiny(tmp_path / "half", **SECTIONS), **OWN, resume=True, progress=False)
    assert metrics_of(tmp_path / "half")[2] == metrics_of(run.run_dir)[2]


def test_its_model_can_be_exported_without_the_script(run):
    assert (export_run(run.run_dir) / "config.json").is_file()
