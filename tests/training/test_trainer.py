"""What a run writes, records and returns."""

import pytest
from fakes import registered
from tiny_runs import metrics_of, tiny, trajectories_of
from transformers import AutoModelForCausalLM

from envgym import Trajectory
from envgym.engines.embedded.tiny_model import create_model
from envgym.training import train
from envgym.training.run_folder import read_config, read_metrics
from envgym.training.trainer import _warn_of_mismatch

SHORT = {"num_iterations": 1, "warm_start": None, "evaluation": {"episodes": 2}, "kl": None}
WORLD = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(tiny(folder, num_iterations=2, checkpoint={"every": 1, "keep": 1}), progress=False)


def test_a_run_folder_holds_what_the_pages_say(run):
    names = {path.name for path in run.run_dir.iterdir()}
    assert names == {
        ".lock",
        "config.json",
        "metrics.jsonl",
        "trajectories.jsonl",
        "tensorboard",
        "checkpoints",
        "initial_model",
        "model",
    }
    assert [p.name for p in (run.run_dir / "checkpoints").iterdir()] == ["000002"]
    assert list((run.run_dir / "tensorboard").iterdir())
    assert read_config(run.run_dir) == tiny(run.run_dir, num_iterations=2, checkpoint={"every": 1, "keep": 1})


def test_every_iteration_is_logged_once_and_every_episode_recorded(run):
    lines = read_metrics(run.run_dir)
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert {"warm_start/loss_first", "warm_start/loss_last", "evaluation/sampled/return"} <= lines[0].keys()
    assert lines[0]["warm_start/loss_last"] < lines[0]["warm_start/loss_first"]
    for name in ("critic/explained_variance", "policy/kl_reference", "episode/return", "time/collect_s", "time/sync_s"):
        assert name in lines[1]
    records = [Trajectory.from_json(line) for line in (run.run_dir / "trajectories.jsonl").read_text().splitlines()]
    assert len(records) == 2 * 6 and all(record.failure is None for record in records)
    assert len({record.seed for record in records}) == 12
    returns = [record.total_reward for record in records[:6]]
    assert lines[1]["episode/return"] == pytest.approx(sum(returns) / 6)
    tokens = sum(record.num_action_tokens for record in records[:6])
    assert lines[1]["batch/action_tokens"] == tokens


def test_value_pretraining_comes_first_and_leaves_the_policy_alone(run):
    lines = read_metrics(run.run_dir)
    assert [line["critic/pretraining"] for line in lines[1:]] == [1.0, 1.0]
    assert "policy/loss" not in lines[1]
    assert lines[0]["evaluation/greedy/return"] == lines[2]["evaluation/greedy/return"]


def test_versions_of_the_weights_are_those_of_the_iteration_before(run):
    versions = [
        {span["version"] for turn in record["turns"] for span in turn["version_spans"]}
        for record in trajectories_of(run.run_dir)
    ]
    assert versions == [{0}] * 6 + [{1}] * 6


def test_the_result_says_what_the_files_say(run):
    assert run.model_dir == run.run_dir / "model"
    assert run.before.keys() == run.after.keys() == {"sampled", "greedy"}
    last = read_metrics(run.run_dir)[-1]
    assert last["evaluation/sampled/return"] == run.after["sampled"].mean_return
    assert {name: value for name, value in last.items() if name != "iteration"} == run.metrics
    assert run.example.failure is None and run.example.turns
    model = AutoModelForCausalLM.from_pretrained(run.model_dir)
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in AutoModelForCausalLM.from_pretrained(run.run_dir / "initial_model").parameters()
    )


def test_no_iteration_at_all_gives_the_warm_model(tmp_path):
    result = train(tiny(tmp_path / "run", num_iterations=0), progress=False)
    assert result.after["greedy"] == result.before["greedy"]
    assert [line["iteration"] for line in metrics_of(result.run_dir)] == [0]


def test_an_environment_that_sometimes_raises_is_trained_on_all_the_same(tmp_path):
    env_id = registered(
        "Flaky", kwargs={"fail_reset": lambda seed: seed % 4 == 0, "fail_step": lambda seed, turn: seed % 4 == 1}
    )
    config = tiny(tmp_path / "run", env={"id": env_id}, **SHORT)
    result = train(config, progress=False)
    records = trajectories_of(config.run_dir)
    failed = [record for record in records if record["failure"] is not None]
    assert len(records) - len(failed) == 6 and failed
    assert all("OSError" in record["failure"] for record in failed)
    assert result.metrics["episode/failed"] == len(failed)
    finished = [sum(t["reward"] for t in record["turns"]) for record in records if record["failure"] is None]
    assert result.metrics["episode/return"] == pytest.approx(sum(finished) / 6)


def test_a_model_of_a_folder_is_trained_and_left_as_it_was(tmp_path):
    folder = create_model(tmp_path / "model", **WORLD, context_length=192)
    before = (folder / "model.safetensors").read_bytes()
    result = train(tiny(tmp_path / "run", model={"kind": "folder", "path": str(folder)}, **SHORT), progress=False)
    assert (folder / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "run" / "initial_model").exists()
    assert result.model_dir.is_dir()


@pytest.mark.parametrize(("difference", "stale", "warned"), [(0.06, 0.0, True), (0.06, 0.5, False), (0.01, 0.0, False)])
def test_a_policy_that_computes_another_model_is_noticed(difference, stale, warned, caplog):
    metrics = {"mismatch/mean_abs": difference, "rollout/stale_share": stale}
    _warn_of_mismatch(3, metrics)
    assert ("Iteration 3: the learner's log-probabilities differ" in caplog.text) == warned
