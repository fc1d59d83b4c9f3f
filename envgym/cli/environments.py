"""`envgym list`, `info`, `check`, `new`, `play` and `serve-tools`: what one does with environments."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.options import AN_ENV, ENVS, add_env_args, assign, make_in_format, positive, seed
from envgym.registry import make, spec

if TYPE_CHECKING:
    from envgym.env import TextEnv

MOST_TURNS = 500
"""Turns of an episode that an agent plays for somebody to watch, where the environment sets no limit."""


def add_environment_commands(commands: Any) -> None:
    """Adds the commands and their arguments to those of `envgym`."""
    listing = commands.add_parser("list", help="list the registered environments with their tags")
    listing.add_argument("--tag", help="only those with this tag")
    listing.set_defaults(run=_list)

    info = commands.add_parser("info", help="show prompt, tools, rewards, limits and an episode of an environment")
    info.add_argument("env", help=AN_ENV)
    add_env_args(info)
    info.add_argument("--seed", type=seed, default=0, help="seed of the sample episode (default 0)")
    info.add_argument("--json", action="store_true", help="print it as JSON")
    info.set_defaults(run=_info)

    check = commands.add_parser("check", help="check environments for what authors get wrong")
    check.add_argument("env", nargs="+", help=ENVS)
    add_env_args(check)
    check.set_defaults(run=_check)

    new = commands.add_parser("new", help="write a package with an environment of your own")
    new.add_argument("name", help="its name, for example my_env")
    new.add_argument("--dir", type=Path, default=Path("."), help="folder to make it in (default: this one)")
    new.set_defaults(run=_new)

    play = commands.add_parser("play", help="play an environment in the terminal, or watch an agent play")
    play.add_argument("env", help=AN_ENV)
    add_env_args(play)
    play.add_argument("--agent", default="human", help="human (default), another agent's name, a run or a model folder")
    play.add_argument("--seed", type=seed, default=0, help="seed of the episode (default 0)")
    play.add_argument("--max-turns", type=positive, help="turn limit in place of the registered one")
    play.set_defaults(run=_play)

    serve = commands.add_parser("serve-tools", help="serve an environment's tools over MCP (stdin and stdout)")
    serve.add_argument("env", help=AN_ENV)
    add_env_args(serve)
    serve.add_argument("--seed", type=seed, default=0, help="seed of the episode (default 0)")
    serve.set_defaults(run=_serve_tools)


def _list(arguments: argparse.Namespace) -> None:
    from envgym.cli.info import listing

    print("\n".join(listing(arguments.tag)))


def _info(arguments: argparse.Namespace) -> None:
    from envgym.cli.info import environment_info

    kwargs = assign({}, arguments.env_arg, "--env-arg")
    info = environment_info(arguments.env, seed=arguments.seed, env_kwargs=kwargs)
    print(json.dumps(dataclasses.asdict(info)) if arguments.json else info)


def _check(arguments: argparse.Namespace) -> int:
    from envgym.checking import check_env

    kwargs = assign({}, arguments.env_arg, "--env-arg")
    reports = []
    for env_id in arguments.env:
        entry = spec(env_id)
        reports.append(check_env(partial(make, entry, **kwargs) if kwargs else entry))
        print(reports[-1])
    return 0 if all(report.ok for report in reports) else 1


def _new(arguments: argparse.Namespace) -> None:
    from envgym.cli.scaffold import new_package

    for file in new_package(arguments.name, arguments.dir):
        print(file)
    folder = arguments.dir / arguments.name
    print(f"\nInstall it with `pip install -e {folder}`; {folder / 'README.md'} says what to do next.")


def _play(arguments: argparse.Namespace) -> int:
    from envgym.agents.registry import make_agent
    from envgym.cli.tables import episode_text
    from envgym.rollout.episode import run_episode

    by_hand = arguments.agent == "human"
    if by_hand:
        with suppress(ImportError):
            import readline  # noqa: F401 - `input` then has arrow keys and a history
    agent = make_agent(arguments.agent)
    env = _env_to_play(arguments, by_hand)
    try:
        with _interrupted_at_once():
            trajectory = run_episode(env, agent, seed=arguments.seed)
    finally:
        env.close()
    turns = "1 turn" if len(trajectory.turns) == 1 else f"{len(trajectory.turns)} turns"
    summary = f"{trajectory.ending} after {turns}, return {trajectory.total_reward:+.2f}"
    left = by_hand and (trajectory.failure or "").startswith("EOFError")
    if not by_hand:
        print(episode_text(trajectory))
    elif left:
        print(f"\nleft {summary.removeprefix('failed ')}")
    else:
        print(summary if trajectory.failure is None else f"{summary}: {trajectory.failure}")
    return 1 if trajectory.failure is not None and not left else 0


def _env_to_play(arguments: argparse.Namespace, by_hand: bool) -> TextEnv:
    """The environment: for a person with tools that are called as functions, where it has the choice; for an agent,
    which never gets tired, with an end.
    """
    kwargs, max_turns = assign({}, arguments.env_arg, "--env-arg"), arguments.max_turns
    if by_hand:
        return make_in_format(arguments.env, "function", max_turns=max_turns, **kwargs)
    env = make(arguments.env, max_turns=max_turns, **kwargs)
    if env.get_wrapper_attr("max_turns") is not None:
        return env
    env.close()
    return make(arguments.env, max_turns=MOST_TURNS, **kwargs)


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt where the program is, rather than at the next await of an event loop."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve_tools(arguments: argparse.Namespace) -> None:
    from envgym.cli.tool_server import ToolServer, serve

    kwargs = assign({}, arguments.env_arg, "--env-arg")
    with closing(ToolServer(arguments.env, seed=arguments.seed, env_kwargs=kwargs)) as episode:
        asyncio.run(serve(episode))
