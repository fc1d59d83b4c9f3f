"""The `envgym` command: list, info, check, new, serve-tools, play, eval, train, quickstart, export."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.errors import EnvGymError

if TYPE_CHECKING:
    from envgym.config import TrainConfig
    from envgym.types import Trajectory


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status.

    0 is success, 1 that `check` found something, 2 follows a clear message, and 130 is an interruption.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except (EnvGymError, OSError, ValueError) as error:
        print(f"envgym: {_message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("envgym: interrupted", file=sys.stderr)
        return 130


def _message(error: Exception) -> str:
    """The message of an error; of a failed validation one line for each field."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"]) or "configuration"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no such field")
        else:
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')} (got {str(entry['input'])[:80]})")
    return "; ".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="envgym", description="Text environments for language-model agents, and their training."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="list the registered environments with their tags")
    listing.add_argument("--tag", help="only those with this tag")
    listing.set_defaults(run=_list)

    info = commands.add_parser("info", help="show prompt, tools, rewards, limits and an episode of an environment")
    info.add_argument("env", help="id of an environment")
    info.add_argument("--seed", type=int, default=0, help="seed of the sample episode (default 0)")
    info.add_argument("--json", action="store_true", help="print it as JSON")
    info.set_defaults(run=_info)

    check = commands.add_parser("check", help="check environments for what authors get wrong")
    check.add_argument("env", nargs="+", help="ids of environments, or module:id to import a module first")
    check.set_defaults(run=_check)

    new = commands.add_parser("new", help="write a package with an environment of your own")
    new.add_argument("name", help="its name, for example my_env")
    new.add_argument("--dir", type=Path, default=Path("."), help="folder to make it in (default: this one)")
    new.set_defaults(run=_new)

    serve = commands.add_parser("serve-tools", help="serve an environment's tools over MCP (stdin and stdout)")
    serve.add_argument("env", help="id of an environment")
    serve.add_argument("--seed", type=int, default=0, help="seed of the episode (default 0)")
    serve.set_defaults(run=_serve_tools)

    play = commands.add_parser("play", help="play an environment in the terminal, or watch an agent play")
    play.add_argument("env", help="id of an environment")
    play.add_argument("--agent", default="human", help="human (default), another agent's name, a run or a model folder")
    play.add_argument("--seed", type=int, default=0)
    play.set_defaults(run=_play)

    evaluation = commands.add_parser("eval", help="evaluate an agent")
    evaluation.add_argument(
        "--agent", required=True, help="random, solver, demonstrator, a run or model folder, or openai:MODEL@URL"
    )
    evaluation.add_argument(
        "--agent-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the agent: temperature=0"
    )
    evaluation.add_argument("--env", required=True, nargs="+", help="ids of environments")
    evaluation.add_argument("--episodes", type=int, default=100, help="tasks of each environment (default 100)")
    evaluation.add_argument("--attempts", type=int, default=1, help="episodes of each task (default 1)")
    evaluation.add_argument("--seed", type=int, default=0, help="seed of the first task (default 0)")
    evaluation.add_argument("--max-turns", type=int, help="turn limit in place of the registered one")
    evaluation.add_argument("--concurrency", type=int, default=64, help="episodes that run at once (default 64)")
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

    train = commands.add_parser("train", help="train a policy")
    train.add_argument("config", nargs="?", help="name of a recipe, or a config.json")
    train.add_argument("--run-dir", type=Path, help="folder of the run (default runs/NAME)")
    train.add_argument("--seed", type=int, help="seed of the run")
    train.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field: actor.learning_rate=1e-4"
    )
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue a run from its newest checkpoint")
    train.set_defaults(run=_train)

    quickstart = commands.add_parser("quickstart", help="train a small policy to use tools, in a few minutes on a CPU")
    quickstart.add_argument("--run-dir", type=Path, help="folder of the run (default runs/quickstart)")
    quickstart.add_argument("--seed", type=int)
    quickstart.set_defaults(run=_train, config="quickstart", set=[], resume=None)

    export = commands.add_parser("export", help="write the model of an unfinished run's newest checkpoint")
    export.add_argument("run_dir", type=Path, metavar="RUN")
    export.set_defaults(run=_export)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    from envgym.info import listing

    print("\n".join(listing(arguments.tag)))


def _info(arguments: argparse.Namespace) -> None:
    from envgym.info import environment_info

    info = environment_info(arguments.env, seed=arguments.seed)
    print(json.dumps(info.as_dict()) if arguments.json else info)


def _check(arguments: argparse.Namespace) -> int:
    from envgym.checking import check_env

    reports = []
    for env_id in arguments.env:
        reports.append(check_env(env_id))
        print(reports[-1])
    return 0 if all(report.ok for report in reports) else 1


def _new(arguments: argparse.Namespace) -> None:
    from envgym.scaffold import new_package

    for file in new_package(arguments.name, arguments.dir):
        print(file)
    folder = arguments.dir / arguments.name
    print(f"\nInstall it with `pip install -e {folder}`; {folder / 'README.md'} says what to do next.")


def _serve_tools(arguments: argparse.Namespace) -> None:
    from envgym.tool_server import serve_tools

    serve_tools(arguments.env, seed=arguments.seed)


def _play(arguments: argparse.Namespace) -> None:
    from envgym.agent_registry import make_agent
    from envgym.rollout.episode import run_episode
    from envgym.tables import episode_text

    trajectory = run_episode(arguments.env, make_agent(arguments.agent), seed=arguments.seed)
    if arguments.agent != "human":
        print(episode_text(trajectory))
    elif trajectory.failure is not None:
        print(f"\nleft the episode ({trajectory.failure})")
    else:
        print(f"{trajectory.ending} after {len(trajectory.turns)} turns, return {trajectory.total_reward:+.2f}")


def _eval(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from envgym.evaluation.runner import evaluate
    from envgym.progress import ProgressDisplay
    from envgym.tables import report_table

    agent_kwargs: dict[str, Any] = {"greedy": True} if arguments.greedy else {}
    for given in arguments.agent_arg:
        if given.partition("=")[0].startswith("api_key"):
            raise ValueError("a key on the command line is for all to see; set OPENAI_API_KEY instead")
        _change(agent_kwargs, given, "--agent-arg")
    total = arguments.episodes * arguments.attempts * len(arguments.env)
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay())
        phase = stack.enter_context(display.phase("evaluating", total))
        file = None
        if arguments.trajectories is not None:
            file = stack.enter_context(arguments.trajectories.open("w", encoding="utf-8"))
        judged: list[bool] = []

        def on_episode(trajectory: Trajectory) -> None:
            if file is not None:
                file.write(trajectory.to_json() + "\n")
            if trajectory.success is not None:
                judged.append(trajectory.success)
            phase.advance(note=f"success {sum(judged) / len(judged):.2f}" if judged else None)

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
                on_episode=on_episode,
            )
        except KeyboardInterrupt:
            if arguments.results is not None:
                print(f"\nenvgym: the same command goes on from '{arguments.results}'", file=sys.stderr)
            raise
    overall = [evaluation.overall] if len(evaluation) > 1 else []
    if arguments.json:
        print(json.dumps([report.as_dict() for report in (*evaluation.values(), *overall)]))
        return
    title = f"{evaluation.overall.agent} ({arguments.agent})"
    columns = {**evaluation, **{report.env_id: report for report in overall}}
    console = Console()
    console.print(report_table(title, columns))
    for failure, number in evaluation.overall.failures.items():
        console.print(f"failed {number} times: {failure}", markup=False, highlight=False, soft_wrap=True)


def _compare(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from envgym.evaluation.comparison import compare
    from envgym.tables import comparison_table, left_out

    comparison = compare(arguments.a, arguments.b)
    if arguments.json:
        print(json.dumps(comparison.as_dict()))
        return
    console = Console()
    console.print(comparison_table(comparison, str(arguments.a), str(arguments.b)))
    console.print("\n".join(left_out(comparison)), markup=False, highlight=False, soft_wrap=True)


def _train(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from envgym.run_folder import read_config
    from envgym.tables import episode_text, report_table
    from envgym.training import train

    if arguments.resume is not None:
        if arguments.config or arguments.set or arguments.run_dir or arguments.seed is not None:
            raise ValueError("--resume continues a run as it was configured; it goes with no other argument")
        config = read_config(arguments.resume)
    elif arguments.config is None:
        raise ValueError("name a recipe or a config.json to train, or a run to --resume")
    else:
        config = _configured(arguments)
    try:
        result = train(config, resume=arguments.resume is not None)
    except KeyboardInterrupt:
        print(f"\nenvgym: continue with `envgym train --resume {config.run_dir}`", file=sys.stderr)
        raise
    console = Console(highlight=False)
    columns = {
        f"{kind} {when}": reports[kind]
        for kind in ("sampled", "greedy")
        for when, reports in (("before", result.before), ("after", result.after))
    }
    console.print(report_table(f"{config.env.id} on {config.evaluation.episodes} held-out seeds", columns))
    command = f"envgym eval --agent {result.run_dir} --env {config.env.id} --episodes 256"
    lines = [
        "\nOne episode of the trained policy:",
        episode_text(result.example),
        f"\nRun folder: {result.run_dir}",
        f"Evaluate it: {command}",
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _configured(arguments: argparse.Namespace) -> TrainConfig:
    """The recipe or file that was named, with the changes that were asked for.

    Raises:
        ValueError: There is no such recipe or file, or a change does not fit.
    """
    from envgym.config import TrainConfig
    from envgym.recipes import RECIPES

    name = arguments.config
    if name in RECIPES:
        fields: dict[str, Any] = RECIPES[name]("run").model_dump(mode="json")
        fields["run_dir"] = str(arguments.run_dir or _free_folder(Path("runs") / name))
    elif Path(name).is_file():
        try:
            fields = json.loads(Path(name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"'{name}' is not valid JSON: {error}") from error
        if arguments.run_dir is not None:
            fields["run_dir"] = str(arguments.run_dir)
    else:
        raise ValueError(f"'{name}' is neither a recipe ({', '.join(sorted(RECIPES))}) nor a configuration file")
    if arguments.seed is not None:
        fields["seed"] = arguments.seed
    for change in arguments.set:
        _change(fields, change)
    return TrainConfig.model_validate(fields)


def _change(fields: dict[str, Any], change: str, option: str = "--set") -> None:
    """Applies one `section.field=value`; the value is JSON, or else a string."""
    path, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"{option} takes FIELD=VALUE, got '{change}'")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *sections, field = path.split(".")
    for section in sections:
        inner = fields.setdefault(section, {})
        if inner is None:
            inner = fields[section] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{option} {change}: '{section}' is not a section")
        fields = inner
    fields[field] = value


def _free_folder(path: Path) -> Path:
    """The path, with a number behind it if it is taken."""
    if not path.exists():
        return path
    return next(numbered for n in count(2) if not (numbered := path.with_name(f"{path.name}-{n}")).exists())


def _export(arguments: argparse.Namespace) -> None:
    from envgym.training import export_run

    print(export_run(arguments.run_dir))


if __name__ == "__main__":
    sys.exit(main())
