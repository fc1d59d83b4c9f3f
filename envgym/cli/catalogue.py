"""The catalogue of the environments that come with envgym, from the registry and their READMEs.

`python -m envgym.cli.catalogue` writes `docs/environments.md` of the source tree it is run in; `--check` only says
whether that file is current. What is written does not depend on which optional packages are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator

from envgym.cli.readme import Readme, first_sentence, summary, tags
from envgym.registry import list_environments, spec

CATALOGUE = Path("docs") / "environments.md"
LICENCES = (
    *("Apache-2.0", "MIT", "BSD-3-Clause", "BSD-2-Clause", "GPL-3.0", "LGPL-3.0", "MPL-2.0"),
    *("CC-BY-SA-4.0", "CC BY-SA 4.0", "CC-BY-4.0", "CC BY 4.0", "CC0", "public domain", "public-domain"),
)
NOT_FOR_ENVIRONMENTS = frozenset({"dev", "train", "renderers", "mcp"})
"""Extras that no environment needs."""
NONE = "–"

_HEAD = """\
# The environments that come with envgym

Written by `make catalogue` from the registry and the README of each environment; change those, not this file.
`envgym info ID` shows an environment in full.

Scores are those of the READMEs: what the random agent and the solver reach, and in parentheses what is measured.
Under "data" are licences of what is not envgym's own; a {none} means that the tasks are generated or were written here.
Under "extra" is what to install (`pip install 'envgym[extra]'`; the README says more); a {none} means nothing.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment of the catalogue; every field but `id` and `readme` is Markdown for a cell.

    Attributes:
        id: Registered id.
        readme: Path of its README from the root of the tree; None where it has none.
        task: What is to be done.
        tools: "yes" where actions are tool calls.
        horizon: Limit of turns, and how long an episode takes the solver.
        endings: How an episode ends.
        random: Score of the random agent.
        solver: Score of the solver.
        data: Licence of data that is not envgym's own.
        extra: Extra of envgym that the environment needs.
    """

    id: str
    readme: str | None
    task: str
    tools: str
    horizon: str
    endings: str
    random: str
    solver: str
    data: str
    extra: str


def catalogue(root: Path) -> str:
    """The catalogue as Markdown.

    Args:
        root: Root of the source tree; its `pyproject.toml` names the extras.
    """
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    entries = [entry_of(spec(env_id), extras) for env_id in list_environments("builtin")]
    return _HEAD.format(none=NONE) + "".join(_tables(entries))


def entry_of(env: EnvSpec, extras: Iterable[str]) -> Entry:
    """What the catalogue says about an environment.

    Args:
        env: Its registration.
        extras: Extras of the package.
    """
    readme = Readme.of(env) or Readme("")
    module = _module(env)
    limit, is_terminal = _turn_limit(env, readme)
    data = readme.paragraph("Data") or readme.paragraph("Source")
    found = sorted({name for name in LICENCES if name in data}, key=data.index)
    return Entry(
        id=env.id,
        readme=f"environments/{module}/README.md" if readme.text else None,
        task=summary(env) or NONE,
        tools="yes" if "tools" in tags(env) else NONE,
        horizon=_horizon(limit, readme.paragraph("Horizon")),
        endings=_endings(limit, is_terminal, readme.paragraph("Ending")),
        random=readme.score(env.id, "random") or NONE,
        solver=readme.score(env.id, "solver") or NONE,
        data=", ".join(found) or ("see README" if data else NONE),
        extra=_extra(module, readme.text, extras),
    )


def _module(env: EnvSpec) -> str:
    """Name of the folder below `environments/`."""
    return str(env.entry_point).partition(":")[0].rpartition(".")[2]


def _turn_limit(env: EnvSpec, readme: Readme) -> tuple[int | None, bool]:
    """Limit of turns and whether it belongs to the task: of the registration, else of the class."""
    kwargs = [dict(wrapper.kwargs or {}) for wrapper in env.additional_wrappers]
    registered: dict[str, Any] = next((given for given in kwargs if "max_turns" in given), {})
    limit: int | None = registered.get("max_turns")
    limits: Any = registered.get("terminal_limits")
    if limit is None or limits is None:
        creator: Any = None
        with contextlib.suppress(ImportError):
            creator = load_env_creator(env.entry_point) if isinstance(env.entry_point, str) else env.entry_point
        if limit is None:
            # A factory does not say what limit its environments have.
            limit = creator.max_turns if hasattr(creator, "max_turns") else readme.turn_limit()
        if limits is None:
            limits = getattr(creator, "terminal_limits", ())
    return limit, "max_turns" in limits


def _horizon(limit: int | None, paragraph: str) -> str:
    turns = "" if limit is None else f"at most {limit} turns; "
    told = "" if paragraph.endswith(":") else first_sentence(paragraph)
    return (turns + told[:1].lower() + told[1:]).removesuffix("; ") or "set by the task"


def _endings(limit: int | None, is_terminal: bool, paragraph: str) -> str:
    told = first_sentence(paragraph)
    if limit is None or (told and is_terminal):
        return told or NONE
    cut = f"{'terminated' if is_terminal else 'truncated'} after {limit} turns"
    return f"{told}; {cut}" if told else cut


def _extra(module: str, text: str, extras: Iterable[str]) -> str:
    """The extra that the README says to install; else the one with the name of the module."""
    possible = [extra for extra in extras if extra not in NOT_FOR_ENVIRONMENTS]
    named = [extra for extra in possible if f"envgym[{extra}]" in text]
    named += [extra for extra in possible if extra.replace("-", "_") == module]
    return f"`{named[0]}`" if named else NONE


def _tables(entries: Sequence[Entry]) -> Iterable[str]:
    """A table of what there is, and one of how it ends and what players reach."""
    yield "\n## Tasks\n\n| id | task | tools | data | extra |\n|---|---|---|---|---|\n"
    for entry in entries:
        cells = (_link(entry), entry.task, entry.tools, entry.data, entry.extra)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |\n"
    yield "\n## Episodes and scores\n\n| id | horizon | ends | random | solver |\n|---|---|---|---|---|\n"
    for entry in entries:
        cells = (f"`{entry.id}`", entry.horizon, entry.endings, entry.random, entry.solver)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def _link(entry: Entry) -> str:
    return f"`{entry.id}`" if entry.readme is None else f"[`{entry.id}`](../{entry.readme})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the catalogue, or says whether it is current; returns the exit status, 1 for a file that is not."""
    parser = argparse.ArgumentParser(prog="python -m envgym.cli.catalogue", description="Writes docs/environments.md.")
    parser.add_argument("--root", type=Path, default=Path("."), help="root of the source tree (default: this folder)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    arguments = parser.parse_args(argv)
    path = arguments.root / CATALOGUE
    text = catalogue(arguments.root)
    if arguments.check:
        current = path.is_file() and path.read_text(encoding="utf-8") == text
        if not current:
            print(f"{path} is not current; run `make catalogue`", file=sys.stderr)
        return 0 if current else 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
