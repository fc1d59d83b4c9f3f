"""The seam of an engine: what a third one needs, and that a run uses nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from fakes import ScriptedPolicy
from tiny_runs import metrics_of, tiny, trajectories_of

from envgym.config import Section
from envgym.engines import Engine, EngineSetup, make_engine
from envgym.training import train


class ScriptedPolicyConfig(Section):
    """The section `policy` of a third engine."""

    kind: Literal["scripted"] = "scripted"
    reply: str = "one"


class ScriptedEngine(Engine):
    """Samples one reply; knows the name of its weights and the sum of the first parameter."""

    def __init__(self, config: ScriptedPolicyConfig, setup: EngineSetup) -> None:
        reply = [*config.reply.encode(), 258]  # the end of a turn of the byte tokenizer
        self.policy = ScriptedPolicy(lambda prompt, seed: (reply, "stop"), context_length=192)
        self.setup, self.calls = setup, []

    def sync(self, module: torch.nn.Module, version: int) -> None:
        self.policy.version = version
        self.calls.append(("sync", version))

    def close(self) -> None:
        self.calls.append(("close",))


class SharingEngine(ScriptedEngine):
    """Takes turns with the learner's memory."""

    shares_memory = True

    def sleep(self) -> None:
        self.calls.append(("sleep",))

    def wake(self) -> None:
        self.calls.append(("wake",))


def trained_with(engine_class: type[ScriptedEngine], run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """The engine, after a run of two iterations."""
    made: list[ScriptedEngine] = []

    def make(config: ScriptedPolicyConfig, setup: EngineSetup) -> Engine:
        made.append(engine_class(config, setup))
        return made[-1]

    folder: Any = ModuleType("envgym.engines.scripted")
    folder.make_engine = make
    monkeypatch.setitem(sys.modules, folder.__name__, folder)
    settings: dict[str, Any] = {"warm_start": None, "critic": {"pretraining": None}, "evaluation": {"episodes": 2}}
    config = tiny(run_dir, num_iterations=2, **settings).model_copy(update={"policy": ScriptedPolicyConfig()})
    train(config, progress=False)
    (engine,) = made
    return engine


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(("engine_class", "before"), [(ScriptedEngine, []), (SharingEngine, [("sleep",), ("wake",)])])
def test_a_third_engine_of_a_few_lines_trains_and_sleeps_if_it_shares_the_learners_memory(
    tmp_path, monkeypatch, engine_class, before
):
    engine = trained_with(engine_class, tmp_path / "run", monkeypatch)
    each = [call for version in range(3) for call in (*before, ("sync", version))]
    assert engine.calls == [*each, ("close",)]
    assert (engine.setup.device.type, engine.setup.dtype, engine.setup.concurrency) == ("cpu", "float32", 4)
    turns = [turn for record in trajectories_of(tmp_path / "run") for turn in record["turns"]]
    assert {turn["action"] for turn in turns} == {"one"}
    assert {span["version"] for turn in turns for span in turn["version_spans"]} == {0, 1}
    assert [line["iteration"] for line in metrics_of(tmp_path / "run")] == [0, 1, 2]
    assert not engine.policy.sessions, "a session stayed open"


def test_a_kind_without_a_folder_is_no_engine(tmp_path):
    class Unknown(Section):
        kind: Literal["nowhere"] = "nowhere"

    setup = EngineSetup(tmp_path, tmp_path, torch.device("cpu"), "float32", concurrency=1)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        make_engine(Unknown(), setup)
