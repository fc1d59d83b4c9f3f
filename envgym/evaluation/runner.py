"""Plays an agent on held-out seeds and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envgym.agent import Agent
from envgym.agent_registry import make_agent
from envgym.evaluation.results import EnvironmentReport, summarise
from envgym.registry import make, spec
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.rollout.episode import FunctionAgent
from envgym.types import Trajectory


def evaluate(
    agent: Agent | str | Callable[[str], str],
    env_ids: str | Sequence[str],
    *,
    episodes: int = 100,
    attempts: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    max_turns: int | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> dict[str, EnvironmentReport]:
    """Plays `episodes` tasks of each environment, `attempts` times each, and reports by environment.

    Task i has the environment seed `seed + i`; every attempt has randomness of its own on the agent's side. An episode
    that fails is counted in the report and not scored.

    Args:
        agent: An agent, the name or folder of one, or a function from an observation to an action.
        env_ids: One id or several.
        episodes: Tasks of each environment, >= 1.
        attempts: Episodes of each task, >= 1.
        seed: First environment seed. Training never uses seeds below 2**32.
        concurrency: Most episodes that run at the same time.
        max_turns: Turn limit in place of the registered one.
        on_episode: Called with each episode as it ends.

    Returns:
        One report for each environment, in the given order.

    Raises:
        ValueError: An id is unknown, a number is too low, or the agent cannot play an environment.
    """
    if episodes < 1 or attempts < 1:
        raise ValueError(f"episodes and attempts must be at least 1, got {episodes} and {attempts}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if isinstance(agent, str):
        agent = make_agent(agent)
    elif not isinstance(agent, Agent):
        agent = FunctionAgent(agent)
    ids = [env_ids] if isinstance(env_ids, str) else list(env_ids)
    for env_id in ids:
        spec(env_id)
    reports = {}
    for env_id in ids:
        requests = [
            EpisodeRequest(seed=seed + task, agent_seed=(seed + task) * attempts + attempt)
            for task in range(episodes)
            for attempt in range(attempts)
        ]
        trajectories = play(
            agent, env_id, requests, concurrency=concurrency, max_turns=max_turns, on_episode=on_episode
        )
        reports[env_id] = summarise(env_id, agent.name, trajectories)
    return reports


def play(
    agent: Agent,
    env_id: str,
    requests: Sequence[EpisodeRequest],
    *,
    concurrency: int,
    max_turns: int | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Plays the requested episodes of one environment and returns all of them, the failed ones last."""
    collector = Collector(lambda: make(env_id, max_turns=max_turns), concurrency=concurrency)
    try:
        collected = collector.collect(
            agent,
            requests,
            on_episode=None if on_episode is None else lambda _, trajectory: on_episode(trajectory),
            allow_missing=True,
        )
    finally:
        collector.close()
    return [*collected.trajectories, *collected.failed]
