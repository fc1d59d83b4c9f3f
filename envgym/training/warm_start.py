"""The supervised start of a run: an agent plays, and the model imitates it."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from envgym.agents.registry import make_agent
from envgym.config import OptimizerConfig, WarmStartConfig
from envgym.learner.batch import make_sample
from envgym.learner.learner import Learner
from envgym.learner.metrics import all_reduce_sum
from envgym.rollout.collector import training_requests
from envgym.rollout.tokenising import tokenise
from envgym.training.episodes import Players, make_env

if TYPE_CHECKING:
    from envgym.training.progress import ProgressDisplay


def imitate_agent(
    warm_start: WarmStartConfig, players: Players, learner: Learner, display: ProgressDisplay
) -> dict[str, float]:
    """Collects an agent's episodes and trains the policy on its actions; a collective of all ranks.

    Args:
        warm_start: Which agent, how many episodes and updates.
        players: Say which of the episodes this rank plays, and in what.
        learner: What learns.
        display: Shows progress.

    Returns:
        Metrics: numbers of demonstrations, of too long and failed ones, and the loss at both ends (nats per token).

    Raises:
        ValueError: Too few demonstrations fit the context.
    """
    started = time.perf_counter()
    config, context_length = players.config, players.policy.context_length
    indices = players.share(warm_start.num_episodes)
    requests = training_requests(config.seed, "warm_start", 0, indices, max_attempts=config.rollout.max_attempts)
    if warm_start.max_turns is None:
        collector = players.training_collector()
    else:
        collector = players.collector(warm_start.max_turns)
    with closing(collector), display.phase(f"playing the {warm_start.agent}", len(requests)) as phase:
        played = collector.collect(make_agent(warm_start.agent), requests, on_episode=lambda *_: phase.advance())
    # What the agent said becomes what the policy would have seen and sampled.
    with closing(make_env(config, config.env.max_turns)) as env:
        samples = [
            make_sample(tokenise(trajectory, env, players.renderer), index)
            for index, trajectory in zip(indices, played.trajectories, strict=True)
        ]
    fitting = [sample for sample in samples if sample.length <= context_length]
    numbers = [len(fitting), len(samples) - len(fitting), len(played.failed)]
    counts = all_reduce_sum(torch.tensor(numbers, device=learner.device)).tolist()
    if counts[0] < warm_start.batch_episodes:
        raise ValueError(
            f"only {counts[0]} of {warm_start.num_episodes} demonstrations fit the context of {context_length} tokens, "
            "fewer than one batch; use a longer context"
        )
    updates = counts[0] // warm_start.batch_episodes
    total = updates * warm_start.num_epochs
    optimizer = OptimizerConfig(
        learning_rate=warm_start.learning_rate, schedule="cosine", warmup_updates=max(total // 20, 1)
    )
    with display.phase("imitating", total) as phase:
        losses = learner.imitate(
            fitting,
            optimizer,
            epochs=warm_start.num_epochs,
            updates=updates,
            seed=config.seed,
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
