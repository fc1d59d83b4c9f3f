"""A training run of a few seconds, and how to compare two of them. As a script: trains what a JSON file says.

python tiny_runs.py config.json [--resume]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from envgym.config import TrainConfig

TINY: dict[str, Any] = {
    "env": {"id": "envgym/PointerChase-v0", "max_turns": 4, "kwargs": {"hops": 1, "distractors": 1}},
    "model": {
        "kind": "new",
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "context_length": 192,
    },
    "num_iterations": 4,
    "seed": 3,
    "device": "cpu",
    "torch_threads": 1,
    "rollout": {"episodes_per_iteration": 6, "max_turn_tokens": 12, "concurrency": 4, "num_threads": 2},
    "warm_start": {"num_episodes": 24, "batch_episodes": 8},
    "actor": {"learning_rate": 1e-3},
    "critic": {"optimizer": {"learning_rate": 1e-3}, "pretraining": {"max_iterations": 2, "explained_variance": 1.0}},
    "kl": {"beta": 0.01, "target": 0.01, "horizon": 50.0},
    "update": {"num_epochs": 2, "num_minibatches": 2},
    "evaluation": {"episodes": 4, "every": 2},
    "checkpoint": {"every": 2},
}


def tiny(run_dir: Path, **sections: Any) -> TrainConfig:
    """The tiny run, with some sections (given as dictionaries) or numbers replaced."""
    return TrainConfig.model_validate({**TINY, "run_dir": str(run_dir), **sections})


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """What a run logged, timings left out."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not name.startswith("time/")} for line in lines]


def trajectories_of(run_dir: Path) -> list[dict[str, Any]]:
    """What a run recorded, timings left out."""
    records = [json.loads(line) for line in (run_dir / "trajectories.jsonl").read_text().splitlines()]
    for record in records:
        for turn in record["turns"]:
            del turn["generate_s"], turn["step_s"]
    return records


if __name__ == "__main__":
    from envgym.training import train

    train(TrainConfig.model_validate_json(Path(sys.argv[1]).read_text()), resume="--resume" in sys.argv, progress=False)
