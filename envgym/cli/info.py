"""What an author or a player wants to know about an environment, on one page: `envgym info`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from envgym.agents.registry import make_agent
from envgym.cli.readme import summary, tags
from envgym.cli.tables import episode_text
from envgym.env import TextEnv
from envgym.registry import creator_of, list_environments, make, spec
from envgym.rollout.episode import run_episode
from envgym.types import Trajectory, TruncationReason

PLAYERS = ("solver", "demonstrator", "random")
"""Who plays the sample episode: the first that the environment has. All that it has show the reward components."""
EPISODES = 4
"""Episodes of each player in which reward components are looked for."""
MOST_TURNS = 200
"""Turns of such an episode where the environment sets no limit."""


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What is known about an environment.

    Attributes:
        id: Its registered id.
        summary: One line.
        description: Docstring of its class; empty where it has none of its own.
        tags: Tags of the registration.
        arguments: Parameters of the constructor with their values, given or else registered or else default, as
            Python text.
        max_turns: Turns after which an episode ends; None is no limit.
        terminal_limits: Limits that belong to the task; any other truncates.
        system_prompt: Instructions shown before the first observation.
        tools: Function schemas of the tools.
        components: Reward components seen in the episodes of its players, with the lowest and the highest sum of an
            episode.
        players: Names of the players it has.
        sample: An episode of the first of these.
    """

    id: str
    summary: str
    description: str
    tags: tuple[str, ...]
    arguments: dict[str, str]
    max_turns: int | None
    terminal_limits: tuple[str, ...]
    system_prompt: str
    tools: tuple[dict[str, Any], ...]
    components: dict[str, tuple[float, float]]
    players: tuple[str, ...]
    sample: Trajectory

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {**dataclasses.asdict(self), "sample": json.loads(self.sample.to_json())}

    def __str__(self) -> str:
        return "\n\n".join(_paragraphs(self))


def environment_info(env_id: str, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> EnvironmentInfo:
    """Makes an environment, lets its players play a few episodes, and tells what there is to know about it.

    Args:
        env_id: Id of a registered environment.
        seed: Seed of the sample episode; the others follow it. >= 0.
        env_kwargs: Arguments of the environment's constructor, over the registered ones.

    Raises:
        UnknownIdError: No such environment.
        ValueError: The seed is negative, or the constructor does not take an argument or its value.
        MissingDependencyError: The environment needs a package that is not installed.
    """
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    kwargs = dict(env_kwargs or {})
    entry = spec(env_id)
    creator = creator_of(entry)
    episodes = {player: _episodes(env_id, player, range(seed, seed + EPISODES), kwargs) for player in PLAYERS}
    played = {player: trajectories for player, trajectories in episodes.items() if trajectories}
    env = make(env_id, **kwargs)
    try:
        base = cast(TextEnv, env.unwrapped)
        return EnvironmentInfo(
            id=entry.id,
            summary=summary(entry),
            description=inspect.cleandoc(getattr(creator, "__doc__", None) or ""),
            tags=tags(entry),
            arguments=_arguments(creator, {**entry.kwargs, **kwargs}),
            max_turns=env.get_wrapper_attr("max_turns"),
            terminal_limits=tuple(sorted(limit.value for limit in env.get_wrapper_attr("terminal_limits"))),
            system_prompt=base.system_prompt,
            tools=tuple(base.tools),
            components=_components(t for trajectories in played.values() for t in trajectories),
            players=tuple(played),
            sample=next(iter(played.values()))[0],
        )
    finally:
        env.close()


def listing(tag: str | None = None) -> list[str]:
    """One line for each environment: id, tags and summary, in columns. No environment that has a README is imported.

    Args:
        tag: Only those with this tag.

    Raises:
        ValueError: No environment has the tag; the message names those there are.
    """
    found = [spec(env_id) for env_id in list_environments(tag)]
    if tag is not None and not found:
        known = sorted({name for env_id in list_environments() for name in tags(spec(env_id))})
        raise ValueError(f"no environment has the tag '{tag}'; tags are: {', '.join(known)}")
    rows = [(entry.id, ", ".join(tags(entry)) or "-", summary(entry)) for entry in found]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:{widths[0]}}  {labels:{widths[1]}}  {text}".rstrip() for name, labels, text in rows]


def _episodes(env_id: str, player: str, seeds: Iterable[int], kwargs: Mapping[str, Any]) -> list[Trajectory]:
    """Episodes of a player; empty where the environment has no such player."""
    env = make(env_id, **kwargs)
    if env.get_wrapper_attr("max_turns") is None:
        env = make(env_id, max_turns=MOST_TURNS, **kwargs)
    try:
        return [run_episode(env, make_agent(player), seed=seed) for seed in seeds]
    except ValueError:
        if player == PLAYERS[-1]:
            raise
        return []
    finally:
        env.close()


def _components(trajectories: Iterable[Trajectory]) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, total in trajectory.reward_components.items():
            sums.setdefault(name, []).append(round(total, 6))
    return {name: (min(totals), max(totals)) for name, totals in sorted(sums.items())}


def _arguments(creator: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of the constructor, with the values they have here."""
    parameters = inspect.signature(creator).parameters.values()
    return {
        parameter.name: "required"
        if (value := given.get(parameter.name, parameter.default)) is parameter.empty
        else repr(value)
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _paragraphs(info: EnvironmentInfo) -> list[str]:
    """The sections of the page."""
    head = [f"{info.id}: {info.summary}" if info.summary else info.id]
    if info.tags:
        head.append(f"tags: {', '.join(info.tags)}")
    head.append(f"turns: {_limit(info)}")
    if others := [limit for limit in info.terminal_limits if limit != TruncationReason.MAX_TURNS]:
        head.append(f"limits that belong to the task: {', '.join(others)}")
    head.append(f"players: {', '.join(info.players)}")
    paragraphs = ["\n".join(head)]
    if info.description:
        paragraphs.append(_section("Description", info.description))
    if info.arguments:
        lines = [f"{name} = {default}" for name, default in info.arguments.items()]
        paragraphs.append(_section("Arguments", "\n".join(lines)))
    if info.system_prompt:
        paragraphs.append(_section("System prompt", info.system_prompt))
    if info.tools:
        paragraphs.append(_section(f"Tools ({len(info.tools)})", "\n".join(_tool(schema) for schema in info.tools)))
    ranges = [f"{name}  {low:+.2f} to {high:+.2f}" for name, (low, high) in info.components.items()]
    if ranges:
        title = f"Reward components (sum of an episode, lowest and highest of {EPISODES} of each player)"
        paragraphs.append(_section(title, "\n".join(ranges)))
    paragraphs.append(f"Sample episode ({info.players[0]})\n{episode_text(info.sample)}")
    return paragraphs


def _limit(info: EnvironmentInfo) -> str:
    if info.max_turns is None:
        return "no limit outside the task"
    ending = "terminated" if TruncationReason.MAX_TURNS in info.terminal_limits else "truncated"
    return f"at most {info.max_turns}, then {ending}"


def _section(title: str, text: str) -> str:
    return "\n".join([title, *(f"  {line}".rstrip() for line in text.splitlines())])


def _tool(schema: dict[str, Any]) -> str:
    """A tool as its usage, its description and the JSON schema of its arguments."""
    function = schema["function"]
    parameters = function["parameters"]
    usage = f"{function['name']}({', '.join(parameters.get('properties', {}))})"
    description = " ".join(function.get("description", "").split())
    return f"{usage}  {description}\n    {json.dumps(parameters, ensure_ascii=False)}"
