"""`envgym eval` and `compare`: how well an agent does, and how two of them differ."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.cli.options import ENVS, add_env_args, assign, positive, seed

if TYPE_CHECKING:
    from envgym.types import Trajectory


def add_evaluation_commands(commands: Any) -> None:
    """Adds the commands and their arguments to those of `envgym`."""
    evaluation = commands.add_parser("eval", help="evaluate an agent")
    evaluation.add_argument(
        "--agent", required=True, help="random, solver, demonstrator, a run or model folder, or openai:MODEL@URL"
    )
    evaluation.add_argument(
        "--agent-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the agent: temperature=0"
    )
    evaluation.add_argument("--env", required=True, nargs="+", help=ENVS)
    add_env_args(evaluation)
    evaluation.add_argument("--episodes", type=positive, default=100, help="tasks of each environment (default 100)")
    evaluation.add_argument("--attempts", type=positive, default=1, help="episodes of each task (default 1)")
    evaluation.add_argument("--seed", type=seed, default=0, help="seed of the first task (default 0)")
    evaluation.add_argument("--max-turns", type=positive, help="turn limit in place of the registered one")
    evaluation.add_argument("--concurrency", type=positive, default=64, help="episodes that run at once (default 64)")
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


def _eval(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from envgym.cli.tables import named, print_tables, report_tables
    from envgym.evaluation.metrics import SuccessRate
    from envgym.evaluation.results import failure_lines
    from envgym.evaluation.runner import evaluate
    from envgym.training.progress import ProgressDisplay

    agent_kwargs: dict[str, Any] = {"greedy": True} if arguments.greedy else {}
    for given in arguments.agent_arg:
        if given.partition("=")[0].startswith("api_key"):
            raise ValueError("a key on the command line is for all to see; set OPENAI_API_KEY instead")
    assign(agent_kwargs, arguments.agent_arg, "--agent-arg")
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
                env_kwargs=assign({}, arguments.env_arg, "--env-arg"),
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
        print(json.dumps(dataclasses.asdict(comparison)))
        return
    console = Console()
    print_tables(console, [comparison_table(comparison, str(arguments.a), str(arguments.b))])
    console.print("\n".join(left_out(comparison)), markup=False, highlight=False, soft_wrap=True)
