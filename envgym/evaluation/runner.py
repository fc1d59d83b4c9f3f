"""Plays an agent on held-out seeds and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from envgym.agent import Agent, Player
from envgym.agents.registry import list_agents, make_agent
from envgym.env import TextEnv
from envgym.errors import EnvGymError
from envgym.evaluation.results import Evaluation, TokenUsage
from envgym.evaluation.results_folder import (
    EpisodeKey,
    EpisodeRecord,
    ResultsFolder,
    agent_identity,
    env_identity,
    evaluation_of,
)
from envgym.registry import make, spec
from envgym.rollout.collector import STEP_TIMEOUT_S, Collector, EpisodeRequest
from envgym.rollout.episode import FunctionAgent
from envgym.types import Trajectory

MOST_EPISODES = 1_000_000
"""Of one evaluation: they are all in memory at its end."""
MOST_SEED = 2**63


def evaluate(
    agent: Agent | str | Callable[[str], str],
    env_ids: str | Sequence[str],
    *,
    episodes: int = 100,
    attempts: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    max_turns: int | None = None,
    results: str | Path | None = None,
    agent_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """Plays `episodes` tasks of each environment, `attempts` times each, and reports by environment.

    Task i has the environment seed `seed + i`; every attempt has randomness of its own on the agent's side, which
    depends on seed and attempt alone. An episode that fails is counted in the report and not scored, also one whose
    first prompt does not fit the agent's context.

    With a `results` folder every episode is on disk as soon as it ends. What the folder holds already is not played
    again, so that the same call after an interruption goes on where it was; failed episodes are. More episodes,
    attempts or environments may be asked for later, too. The report is over the episodes this call asks for.

    Args:
        agent: An agent, the name or folder of one, or a function from an observation to an action.
        env_ids: One id or several.
        episodes: Tasks of each environment, >= 1.
        attempts: Episodes of each task, >= 1.
        seed: First environment seed. Training never uses seeds below 2**32.
        concurrency: Most episodes that run at the same time.
        max_turns: Turn limit in place of the registered one.
        results: Folder of the results; see `envgym.evaluation.results_folder`. None keeps them in memory only.
        agent_kwargs: Arguments for the constructor of an agent that is given by name or folder.
        env_kwargs: Arguments for the constructor of every environment, over the registered ones.
        step_timeout_s: Seconds that one reset or step of an environment may take, after which its episode has failed;
            None is no limit. See `Collector`.
        on_episode: Called with each episode: first those the results folder holds, then each as it ends.

    Returns:
        One report for each environment, in the given order, by the given id; `.overall` is over all of them.

    Raises:
        ValueError: An id is unknown or given twice, a number is too low, an environment does not take an argument, the
            agent cannot play an environment (or not one first prompt fits its context), or the results folder belongs
            to other settings.
    """
    if episodes < 1 or attempts < 1 or concurrency < 1:
        raise ValueError(
            f"episodes, attempts and concurrency must be at least 1, got {episodes}, {attempts} and {concurrency}"
        )
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    names = [env_ids] if isinstance(env_ids, str) else list(env_ids)
    if (total := episodes * attempts * len(names)) > MOST_EPISODES:
        raise ValueError(f"one evaluation plays at most {MOST_EPISODES:,} episodes, these are {total:,}; ask for fewer")
    if seed + episodes > MOST_SEED:
        raise ValueError(f"seeds must be below 2**63, got {seed}")
    specs = {name: spec(name) for name in names}
    if len({entry.id for entry in specs.values()}) < len(names) or not names:
        raise ValueError(f"name each environment once and at least one; got {', '.join(names) or 'none'}")
    player, folder = _agent(agent, dict(agent_kwargs or {}))

    def make_env(name: str) -> Callable[[], TextEnv]:
        return lambda: make(name, max_turns=max_turns, **(env_kwargs or {}))

    for name in names:  # what the caller got wrong is found before the first of them is played, or a folder written
        try:
            make_env(name)().close()
        except (EnvGymError, ImportError, ValueError):
            raise
        except Exception:
            continue  # the episodes that need it fail, and say why
    wanted = {
        name: [EpisodeKey(entry.id, seed + task, attempt) for task in range(episodes) for attempt in range(attempts)]
        for name, entry in specs.items()
    }
    records: dict[EpisodeKey, EpisodeRecord] = {}
    with ExitStack() as stack:
        store: ResultsFolder | None = None
        if results is not None:
            identity = agent_identity(player, agent_kwargs or {}, folder)
            environments = {entry.id: env_identity(entry, max_turns, env_kwargs or {}) for entry in specs.values()}
            store = stack.enter_context(ResultsFolder(results, identity, environments))
            keys = [key for keys in wanted.values() for key in keys]
            records = {key: store.records[key] for key in keys if key in store.records and store.records[key].finished}
            if on_episode is not None:
                for record in records.values():
                    on_episode(record.trajectory)

        def keep(record: EpisodeRecord) -> None:
            if store is not None:
                store.add(record)
            records[record.key] = record
            if on_episode is not None:
                on_episode(record.trajectory)

        for name, keys in wanted.items():
            missing = [key for key in keys if key not in records]
            requests = [EpisodeRequest(seed=key.seed, agent_seed=_agent_seed(key)) for key in missing]
            metered = _Metered(player)

            def on_end(index: int, trajectory: Trajectory, keys: Any = missing, metered: _Metered = metered) -> None:
                keep(EpisodeRecord(keys[index], trajectory, metered.take_usage(_agent_seed(keys[index]))))

            with closing(
                Collector(make_env(name), concurrency=concurrency, step_timeout_s=step_timeout_s, env_id=specs[name].id)
            ) as collector:
                collection = collector.collect(metered, requests, on_episode=on_end, allow_missing=True)
            if collection.unplayable is not None and not any(records[key].finished for key in keys):
                raise collection.unplayable
    return evaluation_of({name: entry.id for name, entry in specs.items()}, player.name, records.values())


def _agent(agent: Agent | str | Callable[[str], str], kwargs: dict[str, Any]) -> tuple[Agent, Path | None]:
    """The agent, and the folder it comes from, if any."""
    if isinstance(agent, str):
        made = make_agent(agent, **kwargs)
        return made, Path(agent) if agent not in list_agents() and Path(agent).is_dir() else None
    if kwargs:
        raise ValueError(f"agent_kwargs are for an agent given by name or folder, got {agent!r}")
    return (agent if isinstance(agent, Agent) else FunctionAgent(agent)), None


def _agent_seed(key: EpisodeKey) -> int:
    """Seed of the agent's randomness: the task's own for the first attempt, and 63 mixed bits for each further one."""
    if key.attempt == 0:
        return key.seed
    return int(np.random.SeedSequence([key.seed, key.attempt]).generate_state(1, np.uint64)[0] >> 1)


class _Metered(Agent):
    """An agent, and the tokens that its players count themselves in an attribute `usage`."""

    def __init__(self, agent: Agent) -> None:
        self.name = agent.name
        self._agent = agent
        self._players: dict[int, Player] = {}

    def start(self, env: TextEnv, *, seed: int) -> Player:
        self._players[seed] = self._agent.start(env, seed=seed)
        return self._players[seed]

    def take_usage(self, seed: int) -> TokenUsage | None:
        """What the player of that seed has used; None where it does not say, or was never started."""
        usage = getattr(self._players.pop(seed, None), "usage", None)
        return None if usage is None else TokenUsage(**usage)

    def expect_episode(self) -> Callable[[], None]:
        return self._agent.expect_episode()
