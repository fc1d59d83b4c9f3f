"""Training runs that are known to work: functions that return a `TrainConfig` to run, or to change and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envgym.config import (
    CriticConfig,
    EnvConfig,
    EvaluationConfig,
    NewModel,
    OptimizerConfig,
    PolicyLossConfig,
    RolloutConfig,
    TrainConfig,
    WarmStartConfig,
)


def quickstart(run_dir: str | Path, *, seed: int = 0) -> TrainConfig:
    """A model of 0.12 million parameters learns to use two tools, in about two minutes on one CPU core.

    `envgym/PointerChase-v0`: the warm start imitates a clumsy player, whose way of playing finds the answer greedily but
    rarely when sampled; PPO then makes sampled play reliable. Expect sampled success on held-out seeds to rise from about
    .05 to about .95 (`docs/results.md`).

    Args:
        run_dir: New or empty folder for the run.
        seed: Seed of the run.
    """
    return TrainConfig(
        run_dir=Path(run_dir),
        seed=seed,
        env=EnvConfig(id="envgym/PointerChase-v0"),
        model=NewModel(words=("get", "answer", "start")),
        num_iterations=30,
        torch_threads=1,
        rollout=RolloutConfig(episodes_per_iteration=160, max_turn_tokens=16),
        warm_start=WarmStartConfig(num_episodes=5000, batch_episodes=8, learning_rate=4e-3),
        actor=OptimizerConfig(learning_rate=7e-4),
        critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=2e-3)),
        policy_loss=PolicyLossConfig(entropy_coefficient=0.01),
        evaluation=EvaluationConfig(episodes=256),
    )


RECIPES: dict[str, Callable[..., TrainConfig]] = {"quickstart": quickstart}
"""Recipes by the name that `envgym train` takes."""
