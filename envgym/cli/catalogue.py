"""The catalogue of the environments that come with envgym, and the command that measures its scores.

`python -m envgym.cli.catalogue` writes `docs/environments.md` of the source tree it is run in, from the registry and
two files beside the environments: `catalogue.toml`, which people write, and `scores.json`, which `--measure` writes.
For the page no environment is imported. `--check` only says whether it is current.
"""

from __future__ import annotations

import argparse
import importlib.resources
import inspect
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium.envs.registration import EnvSpec

from envgym.env import TextEnv
from envgym.errors import EnvGymError
from envgym.evaluation.runner import evaluate
from envgym.registry import creator_of, list_environments, make, spec
from envgym.types import TruncationReason

PAGE = Path("docs") / "environments.md"
SCORES = Path("environments") / "scores.json"
EPISODES = 50
"""Episodes of each player, on the seeds from 0 on, where `catalogue.toml` names no number."""
MOST_TURNS = 200
"""Turns of a measured episode where the environment sets no limit."""
NONE = "–"

_HEAD = """\
# The environments that come with envgym

Written by `make catalogue` from `environments/catalogue.toml` and `environments/scores.json`; change the first, let
`make scores` write the second. `envgym info ID` shows an environment in full.

Under "data" are licences of what is not envgym's own; a – means that the tasks are generated or were written here.
Under "extra" is what to install (`pip install 'envgym[extra]'`; the README says more); a – means nothing.

## Tasks

| id | task | tools | data | extra |
|---|---|---|---|---|
"""
_EPISODES_HEAD = """
## Episodes and scores

An episode ends as the task says, or at the limit of turns, which truncates where it does not end the task. Scores are
success / reward of an episode with the arguments an environment is registered with; the reward alone stands where no
success is reported, and a – where there is no such player. The last columns are the turns that the solver takes on
average, and the number of episodes of each player, on the seeds from 0 on.

| id | ends with | limit | random | demonstrator | solver | turns | episodes |
|---|---|---|---|---|---|---|---|
"""


def tags(entry: EnvSpec) -> tuple[str, ...]:
    """The tags an environment was registered with."""
    return tuple(tag for wrapper in entry.additional_wrappers for tag in (wrapper.kwargs or {}).get("tags", ()))


def summary(entry: EnvSpec) -> str:
    """One line about an environment: of envgym's own from the catalogue, else the first sentence of its docstring.

    Only for the latter it is imported; one that cannot be imported has no summary.
    """
    if "builtin" in tags(entry):
        return str(_declared(entry)["tasks"][_name(entry)])
    try:
        creator = creator_of(entry)
    except EnvGymError:
        return ""
    first = inspect.cleandoc(getattr(creator, "__doc__", None) or "").partition("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].removesuffix(".")


def players_of(env: TextEnv) -> tuple[str, ...]:
    """The names of the agents that can play an environment without a model, the best one first.

    Args:
        env: One that has been reset.
    """
    base = cast(TextEnv, env.unwrapped)
    scripted = {"solver": base.solver(), "demonstrator": base.demonstrator(np.random.default_rng(0))}
    return (*(name for name, player in scripted.items() if player is not None), "random")


def page(scores: dict[str, Any]) -> str:
    """The catalogue as Markdown.

    Args:
        scores: What `measure` has found out, by the id of the environment.
    """
    entries = [spec(env_id) for env_id in list_environments("builtin")]
    rows = [[_row(_task_cells(entry)) for entry in entries], [_row(_score_cells(e, scores[e.id])) for e in entries]]
    return _HEAD + "".join(rows[0]) + _EPISODES_HEAD + "".join(rows[1])


def measure(env_id: str) -> dict[str, Any]:
    """What the players of an environment reach in it, as JSON values.

    Raises:
        EnvGymError: A package it needs is not installed, or an episode failed.
    """
    entry = spec(env_id)
    env = make(env_id)
    limit, ends = env.get_wrapper_attr("max_turns"), env.get_wrapper_attr("terminal_limits")
    env.reset(seed=0)
    players = players_of(env)
    env.close()
    episodes = _declared(entry).get("episodes", {}).get(_name(entry), EPISODES)
    found: dict[str, Any] = {}
    for player in reversed(players):
        max_turns = None if limit is not None else MOST_TURNS
        report = evaluate(player, env_id, episodes=episodes, concurrency=1, max_turns=max_turns)[env_id]
        if report.failed:
            raise EnvGymError(f"an episode of {player} in '{env_id}' failed: {next(iter(report.failures))}")
        numbers = {"success": report.success, "reward": report.mean_return, "turns": report.turns}
        found[player] = {name: None if value is None else round(value, 3) for name, value in numbers.items()}
    terminates = TruncationReason.MAX_TURNS in ends
    return {"max_turns": limit, "limit_terminates": terminates, "episodes": episodes, "players": found}


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads((importlib.resources.files("envgym.environments") / "catalogue.toml").read_text("utf-8"))


def _declared(entry: EnvSpec) -> dict[str, Any]:
    """What `catalogue.toml` says about the folder of an environment."""
    return _catalogue()[_folder(entry)]


def _folder(entry: EnvSpec) -> str:
    return str(entry.entry_point).partition(":")[0].rpartition(".")[2]


def _name(entry: EnvSpec) -> str:
    return str(entry.entry_point).rpartition(":")[2]


def _task_cells(entry: EnvSpec) -> Iterator[str]:
    declared = _declared(entry)
    yield f"[`{entry.id}`](../environments/{_folder(entry)}/README.md)"
    yield summary(entry)
    yield "yes" if "tools" in tags(entry) else NONE
    yield declared.get("data", NONE)
    yield f"`{declared['extra']}`" if "extra" in declared else NONE


def _score_cells(entry: EnvSpec, measured: dict[str, Any]) -> Iterator[str]:
    players = measured["players"]
    yield f"`{entry.id}`"
    yield _declared(entry)["ends"]
    limit = NONE if measured["max_turns"] is None else str(measured["max_turns"])
    yield f"{limit}, ends it" if measured["limit_terminates"] else limit
    for name in ("random", "demonstrator", "solver"):
        yield _score(players[name]) if name in players else NONE
    yield f"{players['solver']['turns']:.1f}" if "solver" in players else NONE
    yield str(measured["episodes"])


def _score(found: dict[str, Any]) -> str:
    reward = f"{found['reward']:.2f}"
    return reward if found["success"] is None else f"{found['success']:.2f} / {reward}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the catalogue, measured anew if asked to; returns the exit status, 1 for a page that is not current."""
    parser = argparse.ArgumentParser(prog="python -m envgym.cli.catalogue", description="Writes docs/environments.md.")
    parser.add_argument("--root", type=Path, default=Path("."), help="root of the source tree (default: this folder)")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--check", action="store_true", help="write nothing; fail if the page is not current")
    doing.add_argument("--measure", nargs="*", metavar="ID", help="play these environments first (default: all)")
    arguments = parser.parse_args(argv)
    scores_file = arguments.root / SCORES
    scores = json.loads(scores_file.read_text(encoding="utf-8")) if scores_file.is_file() else {}
    if arguments.measure is not None:
        for env_id in arguments.measure or list_environments("builtin"):
            print(env_id, flush=True)
            scores[env_id] = measure(env_id)
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(scores[name])}" for name in sorted(scores))
            scores_file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    text, path = page(scores), arguments.root / PAGE
    if arguments.check:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return 0
        print(f"{path} is not current; run `make catalogue`", file=sys.stderr)
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
