"""Pages about environments: what an author or a player wants to know, and the list of all of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any, cast

from envgym.agents.registry import make_agent
from envgym.cli.catalogue import MOST_TURNS, players_of, summary, tags
from envgym.cli.tables import episode_text
from envgym.env import TextEnv
from envgym.registry import creator_of, list_environments, make, spec
from envgym.rollout.episode import run_episode
from envgym.types import Trajectory, TruncationReason

EPISODES = 4
"""Episodes of each player in which reward components are looked for."""


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

    def __str__(self) -> str:
        """The sections of the page; those without content are left out."""
        limit = "no limit outside the task"
        if self.max_turns is not None:
            ending = "terminated" if TruncationReason.MAX_TURNS in self.terminal_limits else "truncated"
            limit = f"at most {self.max_turns}, then {ending}"
        others = [limit for limit in self.terminal_limits if limit != TruncationReason.MAX_TURNS]
        head = {
            "tags": ", ".join(self.tags),
            "turns": limit,
            "limits that belong to the task": ", ".join(others),
            "players": ", ".join(self.players),
        }
        sections = {
            "Description": self.description,
            "Arguments": "\n".join(f"{name} = {value}" for name, value in self.arguments.items()),
            "System prompt": self.system_prompt,
            f"Tools ({len(self.tools)})": "\n".join(map(_tool, self.tools)),
            f"Reward components (sum of an episode, lowest and highest of {EPISODES} of each player)": "\n".join(
                f"{name}  {low:+.2f} to {high:+.2f}" for name, (low, high) in self.components.items()
            ),
        }
        title = f"{self.id}: {self.summary}" if self.summary else self.id
        pages = [
            "\n".join([title, *(f"{name}: {text}" for name, text in head.items() if text)]),
            *(f"{name}\n{indent(text, '  ')}" for name, text in sections.items() if text),
            f"Sample episode ({self.players[0]})\n{episode_text(self.sample)}",
        ]
        return "\n\n".join(pages)


def environment_info(env_id: str, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> EnvironmentInfo:
    """Makes an environment, lets its players play a few episodes, and tells what there is to know about it.

    Args:
        env_id: Id of a registered environment.
        seed: Seed of the sample episode; the others follow it. >= 0.
        env_kwargs: Arguments of the environment's constructor, over the registered ones.

    Raises:
        UnknownIdError: No such environment.
        ValueError: The constructor does not take an argument or its value.
        MissingDependencyError: The environment needs a package that is not installed.
    """
    kwargs = dict(env_kwargs or {})
    entry = spec(env_id)
    creator = creator_of(entry)
    env = make(env_id, **kwargs)
    max_turns = env.get_wrapper_attr("max_turns")
    if max_turns is None:
        env = make(env_id, max_turns=MOST_TURNS, **kwargs)
    try:
        env.reset(seed=seed)
        players = players_of(env)
        seeds = range(seed, seed + EPISODES)
        played = [run_episode(env, make_agent(player), seed=number) for player in players for number in seeds]
        base = cast(TextEnv, env.unwrapped)
        return EnvironmentInfo(
            id=entry.id,
            summary=summary(entry),
            description=inspect.cleandoc(getattr(creator, "__doc__", None) or ""),
            tags=tags(entry),
            arguments=_arguments(creator, {**entry.kwargs, **kwargs}),
            max_turns=max_turns,
            terminal_limits=tuple(sorted(limit.value for limit in env.get_wrapper_attr("terminal_limits"))),
            system_prompt=base.system_prompt,
            tools=tuple(base.tools),
            components=_components(played),
            players=players,
            sample=played[0],
        )
    finally:
        env.close()


def listing(tag: str | None = None) -> list[str]:
    """One line for each environment: id, tags and summary, in columns. None that comes with envgym is imported.

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


def _tool(schema: dict[str, Any]) -> str:
    """A tool as its usage, its description and the JSON schema of its arguments."""
    function = schema["function"]
    parameters = function["parameters"]
    usage = f"{function['name']}({', '.join(parameters.get('properties', {}))})"
    description = " ".join(function.get("description", "").split())
    return f"{usage}  {description}\n    {json.dumps(parameters, ensure_ascii=False)}"
