"""The supervised start of a run: an agent plays, and the model imitates it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from envgym.agents.registry import make_agent
from envgym.config import OptimizerConfig, WarmStartConfig
from envgym.env import TextEnv
from envgym.learner.batch import make_sample
from envgym.learner.learner import Learner
from envgym.learner.metrics import all_reduce_sum
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.types import Trajectory

if TYPE_CHECKING:
    from envgym.training.progress import ProgressDisplay


def imitate_agent(
    config: WarmStartConfig,
    requests: Sequence[tuple[int, EpisodeRequest]],
    learner: Learner,
    collector: Collector,
    tokenise: Callable[[Trajectory, TextEnv], Trajectory],
    *,
    make_env: Callable[[], TextEnv],
    context_length: int,
    display: ProgressDisplay,
    seed: int,
) -> dict[str, float]:
    """Collects an agent's episodes and trains the policy on its actions; a collective of all ranks.

    Args:
        config: Which agent, how many episodes and updates.
        requests: This rank's share of the episodes, each with its index in the whole.
        learner: What learns.
        collector: Plays the episodes, and is closed here.
        tokenise: Gives an episode the tokens that the policy would have seen and sampled.
        make_env: Makes an environment, whose prompt and tools are rendered.
        context_length: Longer episodes are left out.
        display: Shows progress.
        seed: Seed of the order of updates.

    Returns:
        Metrics: numbers of demonstrations, of too long and failed ones, and the loss at both ends (nats per token).

    Raises:
        ValueError: Too few demonstrations fit the context.
    """
    started = time.perf_counter()
    try:
        with display.phase(f"playing the {config.agent}", len(requests)) as phase:
            played = collector.collect(
                make_agent(config.agent),
                [request for _, request in requests],
                on_episode=lambda *_: phase.advance(),
            )
    finally:
        collector.close()
    env = make_env()
    samples, too_long = [], 0
    for (index, _), trajectory in zip(requests, played.trajectories, strict=True):
        sample = make_sample(tokenise(trajectory, env), index)
        if sample.length <= context_length:
            samples.append(sample)
        else:
            too_long += 1
    env.close()
    counts = all_reduce_sum(torch.tensor([len(samples), too_long, len(played.failed)], device=learner.device)).tolist()
    if counts[0] < config.batch_episodes:
        raise ValueError(
            f"only {counts[0]} of {config.num_episodes} demonstrations fit the context of {context_length} tokens, "
            "fewer than one batch; use a longer context"
        )
    updates = counts[0] // config.batch_episodes
    total = updates * config.num_epochs
    optimizer = OptimizerConfig(
        learning_rate=config.learning_rate, schedule="cosine", warmup_updates=max(total // 20, 1)
    )
    with display.phase("imitating", total) as phase:
        losses = learner.imitate(
            samples,
            optimizer,
            epochs=config.num_epochs,
            updates=updates,
            seed=seed,
            on_update=lambda loss: phase.advance(note=f"loss {loss:.3f}"),
        )
    return {
        "warm_start/demonstrations": float(counts[0]),
        "warm_start/too_long": float(counts[1]),
        "warm_start/failed": float(counts[2]),
        "warm_start/loss_first": losses[0],
        "warm_start/loss_last": sum(losses[-10:]) / len(losses[-10:]),
        "time/warm_start_s": time.perf_counter() - started,
    }
