"""What the README of an environment says about it, read without importing the environment.

A README lies beside the module an environment is registered from. It names the environment and its task in one line,
`` `namespace/Name-v0`: the task. ``, or in a row of a table; paragraphs begin with a word in bold ("**Ending** ...");
a table has the scores of the players.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gymnasium.envs.registration import EnvSpec, load_env_creator

_NAMED = re.compile(r"^((?:`[^`\s]+`(?:,\s+|\s+and\s+)?)+):\s+(.+?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")

Row = list[str]


class Readme:
    """A README as paragraphs and tables.

    Args:
        text: Its Markdown.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, spec: EnvSpec) -> Readme | None:
        """The README beside the module of an environment, if there is one. The module itself is not imported."""
        folder = _folder(spec)
        if folder is None or not (folder / "README.md").is_file():
            return None
        return cls((folder / "README.md").read_text(encoding="utf-8"))

    def task(self, env_id: str) -> str:
        """The first sentence about an environment, without its full stop; empty where it is not named."""
        for match in _NAMED.finditer(self.text):
            if f"`{env_id}`" in match[1]:
                return first_sentence(match[2])
        for table in self.tables():
            for row in table:
                if row[0] == f"`{env_id}`" and len(row) > 1:
                    return first_sentence(row[1])
        return ""

    def paragraph(self, word: str) -> str:
        """The paragraph that begins with a word in bold, on one line and without links; empty where there is none."""
        match = re.search(rf"^\*\*{re.escape(word)}\*\*\s(.+?)(?:\n\s*\n|\Z)", self.text, re.MULTILINE | re.DOTALL)
        return plain(match[1]) if match else ""

    def tables(self) -> Iterator[list[Row]]:
        """The tables as rows of cells; the first row is the head, the line below it is left out."""
        table: list[Row] = []
        for line in [*self.text.splitlines(), ""]:
            if line.startswith("|"):
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                    table.append(cells)
            elif table:
                yield table
                table = []

    def turn_limit(self) -> int | None:
        """The number of turns after which an episode is truncated or cut, if one is stated."""
        match = re.search(r"\bafter\s+(\d+)\s+turns", self.text, re.IGNORECASE)
        return int(match[1]) if match else None

    def score(self, env_id: str, player: str) -> str:
        """The score of a player and what it measures, as in `0.51 / 0.84 (success / reward)`; empty without one.

        A table has its players in rows, or in columns with a row for each environment of the README.
        """
        name = env_id.rpartition("/")[2].partition("-v")[0].lower()
        for head, *rows in self.tables():
            for row in rows:
                if re.split(r"\W", row[0])[0] == player and len(row) == len(head):
                    return f"{' / '.join(row[1:])} ({' / '.join(head[1:])})"
            for column, label in enumerate(head[1:], start=1):
                if not _is_about(label, player):
                    continue
                for row in rows:
                    subject, _, measure = row[0].partition(",")
                    is_it = subject == f"`{env_id}`" or (subject and name.endswith(subject.split()[0].lower()))
                    if is_it and len(row) > column:
                        measured = measure.strip() or ("" if label == player else label)
                        return f"{row[column]} ({measured})" if measured else row[column]
        return ""


def tags(spec: EnvSpec) -> tuple[str, ...]:
    """The tags an environment was registered with."""
    return tuple(tag for wrapper in spec.additional_wrappers for tag in (wrapper.kwargs or {}).get("tags", ()))


def summary(spec: EnvSpec) -> str:
    """One line about an environment: from its README, else from its docstring; empty where both are silent.

    The environment is imported only when its README does not name it; one that cannot be imported has no summary.
    """
    readme = Readme.of(spec)
    if readme is not None and (task := readme.task(spec.id)):
        return task
    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except Exception:
        return ""
    return first_sentence(inspect.cleandoc(getattr(creator, "__doc__", None) or "").split("\n\n")[0])


def plain(text: str) -> str:
    """Markdown on one line, links replaced by what they show."""
    return " ".join(_LINK.sub(r"\1", text).split())


def first_sentence(text: str) -> str:
    """The first sentence of a text on one line, without its full stop."""
    return _SENTENCE_END.split(plain(text))[0].removesuffix(".")


def _is_about(label: str, player: str) -> bool:
    words = re.findall(r"\w+", label)
    return player in words or (player == "solver" and "solved" in words)


def _folder(spec: EnvSpec) -> Path | None:
    """Folder of the module an environment is registered from."""
    if isinstance(spec.entry_point, str):
        try:
            found = importlib.util.find_spec(spec.entry_point.partition(":")[0])
        except (ImportError, ValueError):
            return None
        origin = found.origin if found is not None else None
    else:
        origin = getattr(sys.modules.get(getattr(spec.entry_point, "__module__", "")), "__file__", None)
    return Path(origin).parent if origin else None
