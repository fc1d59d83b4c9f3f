"""The `envgym` command: list, info, check, new, serve-tools, serve, play, eval, train, quickstart, export."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.assignment import assign
from envgym.cli.interruption import interrupted_at_once
from envgym.cli.serve import add_serve_command
from envgym.cli.train import export_command, train_command
from envgym.errors import EnvGymError

if TYPE_CHECKING:
    from envgym.env import TextEnv
    from envgym.types import Trajectory

MOST_TURNS = 500
"""Turns of an episode that an agent plays for somebody to watch, where the environment sets no limit."""
TRAINING_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "tensorboard")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status.

    0 is success, 1 that `check` found something or that no episode finished, 2 follows a clear message, and 130 is an
    interruption.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign shows another
    with suppress(OSError):  # the folder is gone
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.append(os.getcwd())  # so that the module of `module:id` can be a file here
    arguments = _parser().parse_args(argv)
    try:
        status = arguments.run(arguments) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who read the output has enough, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (EnvGymError, OSError, ValueError) as error:
        for line in (_message(error), *getattr(error, "__notes__", ())):
            print(f"envgym: {line}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in TRAINING_PACKAGES:
            raise
        print(f"envgym: this needs {error.name}: pip install 'envgym[train]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("envgym: interrupted", file=sys.stderr)
        return 130


def _message(error: Exception) -> str:
    """The message of an error; of a failed validation one line for each field."""
    from pydantic import ValidationError

    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{os.fsdecode(error.filename)}': {error.strerror}"
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    lines = []
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"]) or "configuration"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no such field")
        else:
            got = f" (got {str(entry['input'])[:80]})" if entry["loc"] else ""
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')}{got}")
    return "; ".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="envgym", description="Text environments for language-model agents, and their training."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    an_env = "id of an environment, or module:id to import the module that registers it first"

    listing = commands.add_parser("list", help="list the registered environments with their tags")
    listing.add_argument("--tag", help="only those with this tag")
    listing.set_defaults(run=_list)

    info = commands.add_parser("info", help="show prompt, tools, rewards, limits and an episode of an environment")
    info.add_argument("env", help=an_env)
    _add_env_args(info)
    info.add_argument("--seed", type=_seed, default=0, help="seed of the sample episode (default 0)")
    info.add_argument("--json", action="store_true", help="print it as JSON")
    info.set_defaults(run=_info)

    check = commands.add_parser("check", help="check environments for what authors get wrong")
    check.add_argument("env", nargs="+", help="ids of environments, or module:id to import the module first")
    _add_env_args(check)
    check.set_defaults(run=_check)

    new = commands.add_parser("new", help="write a package with an environment of your own")
    new.add_argument("name", help="its name, for example my_env")
    new.add_argument("--dir", type=Path, default=Path("."), help="folder to make it in (default: this one)")
    new.set_defaults(run=_new)

    serve = commands.add_parser("serve-tools", help="serve an environment's tools over MCP (stdin and stdout)")
    serve.add_argument("env", help=an_env)
    _add_env_args(serve)
    serve.add_argument("--seed", type=_seed, default=0, help="seed of the episode (default 0)")
    serve.set_defaults(run=_serve_tools)

    add_serve_command(commands)

    play = commands.add_parser("play", help="play an environment in the terminal, or watch an agent play")
    play.add_argument("env", help=an_env)
    _add_env_args(play)
    play.add_argument("--agent", default="human", help="human (default), another agent's name, a run or a model folder")
    play.add_argument("--seed", type=_seed, default=0, help="seed of the episode (default 0)")
    play.add_argument("--max-turns", type=_positive, help="turn limit in place of the registered one")
    play.set_defaults(run=_play)

    evaluation = commands.add_parser("eval", help="evaluate an agent")
    evaluation.add_argument(
        "--agent", required=True, help="random, solver, demonstrator, a run or model folder, or openai:MODEL@URL"
    )
    evaluation.add_argument(
        "--agent-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the agent: temperature=0"
    )
    evaluation.add_argument(
        "--env", required=True, nargs="+", help="ids of environments, or module:id to import the module first"
    )
    _add_env_args(evaluation)
    evaluation.add_argument("--episodes", type=_positive, default=100, help="tasks of each environment (default 100)")
    evaluation.add_argument("--attempts", type=_positive, default=1, help="episodes of each task (default 1)")
    evaluation.add_argument("--seed", type=_seed, default=0, help="seed of the first task (default 0)")
    evaluation.add_argument("--max-turns", type=_positive, help="turn limit in place of the registered one")
    evaluation.add_argument("--concurrency", type=_positive, default=64, help="episodes that run at once (default 64)")
    evaluation.add_argument("--greedy", action="store_true", help="a run or model takes its most probable token")
    evaluation.add_argument(
        "--results", type=Path, metavar="DIR", help="write every episode here as it ends, and go on from what is there"
    )
    evaluation.add_argument("--trajectories", type=Path, help="write every episode to this JSON-lines file")
    evaluation.add_argument("--json", action="store_true", help="print the reports as JSON")
    evaluation.set_defaults(run=_eval)

    comparison = commands.add_parser("compare", help="the paired difference of two evaluations with --results")
    comparison.add_argument("a", type=Path, metavar="A", help="results of one agent")
    comparison.add_argument("b", type=Path, metavar="B", help="results of another agent on the same tasks")
    comparison.add_argument("--json", action="store_true", help="print the comparison as JSON")
    comparison.set_defaults(run=_compare)

    quickstart = commands.add_parser("quickstart", help="train a small policy to use tools, in a few minutes on a CPU")
    quickstart.add_argument("--run-dir", type=Path, help="folder of the run (default runs/quickstart)")
    quickstart.add_argument("--seed", type=int)
    quickstart.set_defaults(run=train_command, config="quickstart", set=[], resume=None)

    train = commands.add_parser("train", help="train a policy")
    train.add_argument("config", nargs="?", help="name of a recipe, or a config.json")
    train.add_argument("--run-dir", type=Path, help="folder of the run (default runs/NAME)")
    train.add_argument("--seed", type=int, help="seed of the run")
    train.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field: actor.learning_rate=1e-4"
    )
    for command in (train, quickstart):
        command.add_argument(
            "--policy", choices=("embedded", "sglang"), help="what samples: the embedded engine (default), or SGLang"
        )
        command.add_argument(
            "--url",
            action="append",
            metavar="URL",
            help="an SGLang server that runs already, also of a run to resume; none starts one",
        )
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue a run from its newest checkpoint")
    train.set_defaults(run=train_command)

    export = commands.add_parser("export", help="write the model of an unfinished run's newest checkpoint")
    export.add_argument("run_dir", type=Path, metavar="RUN")
    export.set_defaults(run=export_command)
    return parser


def _add_env_args(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--env-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the environment: size=4"
    )


def _number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if not least <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be from {least} to 2**63 - 1, got {text}")
    return value


def _positive(text: str) -> int:
    return _number(text, 1)


def _seed(text: str) -> int:
    return _number(text, 0)


def _env_kwargs(arguments: argparse.Namespace) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    for given in arguments.env_arg:
        assign(kwargs, given, "--env-arg")
    return kwargs


def _list(arguments: argparse.Namespace) -> None:
    from envgym.cli.info import listing

    print("\n".join(listing(arguments.tag)))


def _info(arguments: argparse.Namespace) -> None:
    from envgym.cli.info import environment_info

    info = environment_info(arguments.env, seed=arguments.seed, env_kwargs=_env_kwargs(arguments))
    print(json.dumps(info.as_dict()) if arguments.json else info)


def _check(arguments: argparse.Namespace) -> int:
    from envgym.checking import check_env
    from envgym.registry import make, spec

    kwargs = _env_kwargs(arguments)
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


def _serve_tools(arguments: argparse.Namespace) -> None:
    from envgym.cli.tool_server import serve_tools

    serve_tools(arguments.env, seed=arguments.seed, env_kwargs=_env_kwargs(arguments))


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
        with interrupted_at_once():
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
    elif trajectory.failure is not None:
        print(f"{summary}: {trajectory.failure}")
    else:
        print(summary)
    return 1 if trajectory.failure is not None and not left else 0


def _env_to_play(arguments: argparse.Namespace, by_hand: bool) -> TextEnv:
    """The environment: for a person with tools that are called as functions, where it has the choice; for an agent,
    which never gets tired, with an end.
    """
    from envgym.registry import make

    kwargs, max_turns = _env_kwargs(arguments), arguments.max_turns
    if by_hand and "call_format" not in kwargs:
        try:
            return make(arguments.env, max_turns=max_turns, **{"call_format": "function", **kwargs})
        except ValueError as error:
            if "takes no argument 'call_format'" not in str(error):
                raise
    env = make(arguments.env, max_turns=max_turns, **kwargs)
    if by_hand or env.get_wrapper_attr("max_turns") is not None:
        return env
    env.close()
    return make(arguments.env, max_turns=MOST_TURNS, **kwargs)


def _eval(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from envgym.cli.tables import named, print_tables, report_tables
    from envgym.evaluation.rows import failure_lines
    from envgym.evaluation.runner import evaluate
    from envgym.evaluation.success import SuccessRate
    from envgym.training.progress import ProgressDisplay

    agent_kwargs: dict[str, Any] = {"greedy": True} if arguments.greedy else {}
    for given in arguments.agent_arg:
        if given.partition("=")[0].startswith("api_key"):
            raise ValueError("a key on the command line is for all to see; set OPENAI_API_KEY instead")
        assign(agent_kwargs, given, "--agent-arg")
    total = arguments.episodes * arguments.attempts * len(arguments.env)
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay())
        phase = stack.enter_context(display.phase("evaluating", total))
        file = None
        if arguments.trajectories is not None:
            file = stack.enter_context(arguments.trajectories.open("a", encoding="utf-8"))
        rate = SuccessRate()
        num_failed = num_played = 0

        def on_episode(trajectory: Trajectory) -> None:
            nonlocal num_failed, num_played
            if file is not None:
                if num_played == 0:
                    file.truncate(0)  # not before: a command that is refused must not empty the file of another
                file.write(trajectory.to_json() + "\n")
            num_played += 1
            rate.add(trajectory)
            num_failed += trajectory.failure is not None
            notes = [] if rate.value is None else [f"success {rate.value:.2f}"]
            phase.advance(note=", ".join([*notes, *([f"{num_failed} failed"] if num_failed else [])]))

        try:
            evaluation = evaluate(
                arguments.agent,
                arguments.env,
                episodes=arguments.episodes,
                attempts=arguments.attempts,
                seed=arguments.seed,
                concurrency=arguments.concurrency,
                max_turns=arguments.max_turns,
                results=arguments.results,
                agent_kwargs=agent_kwargs,
                env_kwargs=_env_kwargs(arguments),
                on_episode=on_episode,
            )
        except KeyboardInterrupt:
            if arguments.results is not None:
                print(f"\nenvgym: the same command goes on from '{arguments.results}'", file=sys.stderr)
            raise
    columns = evaluation.columns()
    if arguments.json:
        print(json.dumps([report.as_dict() for report in columns.values()]))
    else:
        console = Console()
        title = named(evaluation.overall.agent, arguments.agent)
        console.print(title, markup=False, highlight=False, soft_wrap=True)
        print_tables(console, report_tables(columns, console.width))
        for line in failure_lines(columns):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if evaluation.overall.episodes:
        return 0
    commonest = next(iter(evaluation.overall.failures))  # they are in order
    print(f"envgym: no episode finished; the commonest failure: {commonest}", file=sys.stderr)
    return 1


def _compare(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from envgym.cli.tables import comparison_table, left_out, print_tables
    from envgym.evaluation.comparison import compare

    comparison = compare(arguments.a, arguments.b)
    if arguments.json:
        print(json.dumps(comparison.as_dict()))
        return
    console = Console()
    print_tables(console, [comparison_table(comparison, str(arguments.a), str(arguments.b))])
    console.print("\n".join(left_out(comparison)), markup=False, highlight=False, soft_wrap=True)
