"""Training runs that are known to work: functions that return a `TrainConfig` to run, or to change and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from envgym.config import (
    CriticConfig,
    EnvConfig,
    EvaluationConfig,
    GAEEstimatorConfig,
    NewModel,
    OptimizerConfig,
    PPOClipLossConfig,
    RolloutConfig,
    TrainConfig,
    UpdateConfig,
    ValuePretrainingConfig,
    WarmStartConfig,
)


def quickstart(run_dir: str | Path, *, seed: int = 0) -> TrainConfig:
    """A model of 0.12 million parameters learns to use two tools, in about two minutes on one CPU core.

    `envgym/PointerChase-v0`: the warm start imitates a clumsy player, whose way of playing finds the answer greedily
    but rarely when sampled; PPO then makes sampled play reliable. Expect sampled success on held-out seeds to rise from
    about .06 to about .93 (`docs/results.md`).

    Args:
        run_dir: New or empty folder for the run.
        seed: Seed of the run.
    """
    return _small_run(
        run_dir,
        seed,
        env=EnvConfig(id="envgym/PointerChase-v0"),
        model=NewModel(words=("get", "answer", "start")),
        num_iterations=30,
        rollout=RolloutConfig(episodes_per_iteration=160, max_turn_tokens=16),
        warm_start=WarmStartConfig(num_episodes=5000, batch_episodes=8, learning_rate=4e-3),
        actor=OptimizerConfig(learning_rate=7e-4),
        critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=2e-3)),
        loss=PPOClipLossConfig(entropy_coefficient=0.01),
        evaluation=EvaluationConfig(episodes=256),
    )


def higher_lower(run_dir: str | Path, *, seed: int = 0) -> TrainConfig:
    """A model of 0.13 million parameters learns a plan of six guesses, in about three and a half CPU minutes.

    `envgym/HigherLower-v0`: the warm start imitates a player that halves the range in four episodes of ten and guesses
    carelessly in the others. PPO makes the careful play reliable and corrects what was learned wrong deep in the plan.
    Success before and after, over three seeds, is in `docs/results.md`. At twice this learning rate one of three seeds
    fell from .87 to 0 within one iteration.

    Every number from 1 to 64 is one token. "information" pays for each guess at once, so a discount of 0.5 a turn takes
    out noise and leaves the best guess the best. One pass over the batch, in eight minibatches, learns more per CPU
    second than two.

    Args: as of `quickstart`.
    """
    return _small_run(
        run_dir,
        seed,
        env=EnvConfig(id="envgym/HigherLower-v0"),
        model=NewModel(words=("higher", "lower", "correct", "was", *map(str, range(1, 65)))),
        num_iterations=100,
        rollout=RolloutConfig(episodes_per_iteration=160, max_turn_tokens=8),
        warm_start=WarmStartConfig(num_episodes=20_000, batch_episodes=8, learning_rate=4e-3),
        actor=OptimizerConfig(learning_rate=1e-3, schedule="cosine"),
        critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=3e-3)),
        estimator=GAEEstimatorConfig(gamma=0.5),
        loss=PPOClipLossConfig(entropy_coefficient=0.03),
        update=UpdateConfig(num_epochs=1, num_minibatches=8),
        evaluation=EvaluationConfig(episodes=256),
    )


def upkeep(run_dir: str | Path, *, seed: int = 0) -> TrainConfig:
    """A model of 0.12 million parameters learns to look after a field that never ends, in about two CPU minutes.

    `envgym/Upkeep-v0`: training episodes are cut after 8 turns, evaluation runs for 48. What a rest is worth lies
    beyond the cut, so the policy can learn it only from the bootstrapped value. The critic is pretrained until it tells
    rich soil from poor, and demonstrations as long as the evaluation let the policy see contexts of that length.
    Figures are in `docs/results.md`.

    Args: as of `quickstart`.
    """
    return _small_run(
        run_dir,
        seed,
        env=EnvConfig(id="envgym/Upkeep-v0", max_turns=8),
        model=NewModel(words=("soil", "weeds", "crop", "rest", "weed"), context_length=1024),
        num_iterations=40,
        rollout=RolloutConfig(episodes_per_iteration=128, max_turn_tokens=8, overlong_penalty=1.0),
        warm_start=WarmStartConfig(num_episodes=800, max_turns=48, batch_episodes=4, learning_rate=4e-3),
        actor=OptimizerConfig(learning_rate=7e-4),
        critic=CriticConfig(
            optimizer=OptimizerConfig(learning_rate=3e-3),
            pretraining=ValuePretrainingConfig(max_iterations=20, explained_variance=0.7),
        ),
        estimator=GAEEstimatorConfig(gamma=0.95, gae_lambda_policy=0.7),
        loss=PPOClipLossConfig(entropy_coefficient=0.03),
        update=UpdateConfig(num_minibatches=8),
        evaluation=EvaluationConfig(episodes=64),
    )


def _small_run(run_dir: str | Path, seed: int, **sections: Any) -> TrainConfig:
    """A run of a small model, which is fastest on one thread."""
    return TrainConfig(run_dir=Path(run_dir), seed=seed, torch_threads=1, **sections)


RECIPES: dict[str, Callable[..., TrainConfig]] = {
    "quickstart": quickstart,
    "higher-lower": higher_lower,
    "upkeep": upkeep,
}
"""Recipes by the name that `envgym train` takes."""
