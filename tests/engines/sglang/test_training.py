"""Training runs whose policy is served by real SGLang servers: attached, started, killed, and one for each rank."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes import registered
from processes import eventually
from tiny_runs import metrics_of, tiny, trajectories_of

from envgym.engines import SGLangServer
from envgym.engines.embedded.tiny_model import create_model
from envgym.engines.sglang.client import SGLangClient
from envgym.environments.pointer_chase import PointerChase
from envgym.errors import ModelError, ServerUnreachableError, WeightSyncError
from envgym.training import train

SHORT: dict[str, Any] = {"warm_start": None, "evaluation": {"episodes": 2}, "kl": None, "critic": {"pretraining": None}}
ROLLOUT = {"episodes_per_iteration": 8, "max_turn_tokens": 12, "concurrency": 8, "num_threads": 2}


@pytest.fixture(scope="module")
def server(requires_sglang, tiny_model_folder):
    with SGLangServer(tiny_model_folder, "cpu") as running:
        yield running


def settings(server: SGLangServer, *, max_policy_lag: int = 0, **policy: Any) -> dict[str, Any]:
    return {
        **SHORT,
        "model": {"kind": "folder", "path": str(server.model)},
        "policy": {"kind": "sglang", "urls": [server.url], **policy},
        "rollout": {**ROLLOUT, "max_policy_lag": max_policy_lag},
    }


def trained(
    run_dir: Path, *, resume: bool = False, **changes: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Metrics of each iteration and all episodes, after training."""
    train(tiny(run_dir, **changes), progress=False, resume=resume)
    return metrics_of(run_dir)[1:], trajectories_of(run_dir)


def servers_of(run_dir: Path) -> list[int]:
    """Processes that serve a run's model."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang.launch_server" in command and any(str(run_dir).encode() in part for part in command):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}])
def test_a_served_policy_is_trained_on_what_it_sampled_and_on_its_supports(server, tmp_path, sampling):
    changed = settings(server, weight_sync="tensors")
    changed["rollout"] |= sampling
    lines, recorded = trained(tmp_path / "run", num_iterations=3, **changed)
    assert len(lines) == 3
    for line in lines:
        assert line["mismatch/max_abs"] < 1e-4, "the learner scores what the server sampled otherwise"
        assert line["policy/first_ratio_max"] == pytest.approx(1.0, abs=1e-3)
        assert line["rollout/lag_max"] == 0.0 and line["rollout/stale_share"] == 0.0
    turns = [record["turns"] for record in recorded]
    versions = [{span["version"] for turn in each for span in turn["version_spans"]} for each in turns]
    assert versions == [{0}] * 8 + [{1}] * 8 + [{2}] * 8
    assert {turn["support"] is not None for each in turns for turn in each} == {bool(sampling)}


@pytest.mark.parametrize("way", ["distributed", "disk"])
def test_collection_runs_ahead_of_training_by_no_more_than_it_may(server, tmp_path, way):
    changed = settings(server, max_policy_lag=2, weight_sync=way)
    lines, recorded = trained(tmp_path / "run", num_iterations=5, **changed, loss={"importance": "tis"})
    lags = [line["rollout/lag_max"] for line in lines]
    assert max(lags) <= 2.0
    assert lags[0] == 0.0 and max(lags[1:3]) > 0.0, "nothing was played ahead"
    assert all(line["rollout/dropped"] == 0.0 for line in lines)
    assert len(recorded) == 5 * 8
    assert len({record["seed"] for record in recorded}) == 5 * 8, "an episode was counted twice"


def test_a_learning_rate_of_zero_leaves_the_served_policy_as_it_was(server, tmp_path):
    changed = settings(server) | {"actor": {"learning_rate": 0.0}, "critic": {"optimizer": {"learning_rate": 0.0}}}
    lines, _ = trained(tmp_path / "run", num_iterations=10, **changed)
    assert all(line["mismatch/max_abs"] < 1e-5 for line in lines)
    before, after = (metrics_of(tmp_path / "run")[n]["evaluation/greedy/return"] for n in (0, -1))
    assert before == after


@pytest.mark.parametrize(
    ("shape", "readable", "error", "problem"),
    [
        ({"words": ("get", "answer", "start")}, True, ModelError, "vocabulary"),
        ({"num_layers": 3}, True, ModelError, "num_hidden_layers is 2, expected 3"),
        ({"num_layers": 3}, False, WeightSyncError, "would ignore"),
        ({"hidden_size": 32}, False, WeightSyncError, r"has shape \(263, 32\), but the server's is \(263, 64\)"),
    ],
)
def test_a_server_of_another_vocabulary_or_architecture_is_refused_before_anything_is_played(
    server, tmp_path, monkeypatch, shape, readable, error, problem
):
    other = create_model(tmp_path / "other", **shape)
    if not readable:
        monkeypatch.setattr("envgym.engines.sglang.served_model.check_architecture", lambda *_: None)
    changed = settings(server) | {"model": {"kind": "folder", "path": str(other)}, "warm_start": {"num_episodes": 64}}
    monkeypatch.setattr("envgym.training.trainer.imitate_agent", lambda *_, **__: pytest.fail("the warm start began"))
    with pytest.raises(error, match=problem):
        train(tiny(tmp_path / "run", num_iterations=1, **changed), progress=False)


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("fleet.sync_servers", WeightSyncError("lost on the way")),
        ("client.SGLangClient.pause", ServerUnreachableError("it is gone")),
    ],
)
def test_weights_that_a_server_was_started_with_do_not_sample_when_the_first_ones_do_not_arrive(
    server, tmp_path, monkeypatch, failing, error
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(f"envgym.engines.sglang.{failing}", fail)
    SGLangClient(server.url).name_weights("default")
    config = tiny(tmp_path / "run", num_iterations=1, **settings(server, recovery_timeout_s=0.3))
    with pytest.raises(WeightSyncError, match=f"no server with the weights of version 0: (.*: )?{error}"):
        train(config, progress=False)
    assert not (config.run_dir / "metrics.jsonl").exists(), "something was evaluated"


def test_a_run_goes_on_at_another_server(server, tmp_path):
    """At one that the run starts itself, with the weights of the checkpoint and not those of the model's folder."""
    changed = settings(server, weight_sync="disk")
    trained(tmp_path / "run", num_iterations=2, checkpoint={"every": 1}, **changed)
    assert not list((tmp_path / "run" / "servers").rglob("*.safetensors")), "weights were left behind"
    changed["policy"] = {"kind": "sglang", "urls": []}
    lines, recorded = trained(tmp_path / "run", num_iterations=4, checkpoint={"every": 1}, **changed, resume=True)
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    assert all(line["mismatch/max_abs"] < 1e-4 and line["rollout/lag_max"] == 0.0 for line in lines)
    assert len({record["seed"] for record in recorded}) == len(recorded) == 4 * 8


class Saboteur(PointerChase):
    """Kills the server of a run, once, in the middle of an episode.

    Args:
        run_dir: The run; the killing is marked there.
    """

    def __init__(self, run_dir: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_dir = Path(run_dir)

    def step(self, action: str):
        mark = self.run_dir / "killed"
        training = (self.run_dir / "checkpoints" / "000001").is_dir()
        if training and not mark.exists():
            mark.touch()
            for pid in servers_of(self.run_dir):
                os.kill(pid, signal.SIGKILL)
        return super().step(action)


def test_a_server_that_dies_in_mid_episode_is_started_again_and_nothing_is_lost_or_counted_twice(
    requires_sglang, tmp_path
):
    run_dir = tmp_path / "run"
    env_id = registered("Saboteur", Saboteur, max_turns=4)
    lines, recorded = trained(
        run_dir,
        num_iterations=3,
        **SHORT,
        env={"id": env_id, "kwargs": {"run_dir": str(run_dir), "hops": 1, "distractors": 1}},
        policy={"kind": "sglang", "recovery_timeout_s": 300},
        rollout={**ROLLOUT, "concurrency": 4},
        checkpoint={"every": 1},
    )
    assert (run_dir / "killed").exists(), "the server was never killed"
    assert {log.name for log in (run_dir / "servers").glob("*.log")} == {"rank0.log", "rank0-1.log"}
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert all(line["mismatch/max_abs"] < 1e-4 for line in lines), "the new server sampled with other weights"
    finished = [record for record in recorded if record["failure"] is None]
    assert len(finished) == 3 * 8 and len({record["seed"] for record in finished}) == 3 * 8
    assert eventually(lambda: not servers_of(run_dir)), "a server outlived its run"
