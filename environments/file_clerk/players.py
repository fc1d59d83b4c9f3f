"""Scripted players of the file clerk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.file_clerk.jobs import JOBS, Files
from envgym.environments.file_clerk.tree import parent
from envgym.tools import format_call

Call = tuple[str, dict[str, Any]]


class Clerk(Player):
    """Reads every file, then makes the folders, moves, copies, texts and removals that the job needs, then finishes.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self.job = ""
        self.unread: list[str] | None = None
        self.reading: str | None = None
        self.files: Files = {}
        self.plan: list[Call] | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return format_call(*self.next_call(observation), self.call_format)

    def next_call(self, observation: str) -> Call:
        """The next call: first all files by name, then their texts, then the plan."""
        if not self.job:
            self.job = observation
            return "find", {"pattern": "*"}
        if self.unread is None:
            self.unread = observation.split("\n")
        elif self.reading is not None:
            self.files[self.reading] = "" if observation == "(empty)" else observation
        if self.unread:
            self.reading = self.unread.pop(0)
            return "cat", {"path": self.reading}
        self.reading = None
        if self.plan is None:
            self.plan = plan(self.files, self.expected())
        return self.plan.pop(0) if self.plan else ("finish", {})

    def expected(self) -> Files:
        """The files there must be, as far as it knows those there are."""
        for job in JOBS:
            if (parameters := job.read(self.job)) is not None:
                return job.work(dict(self.files), parameters)
        raise AssertionError(f"not a job: {self.job!r}")


def plan(files: Files, expected: Files) -> list[Call]:
    """Calls that turn one set of files into another.

    Args:
        files: The files there are.
        expected: The files there must be.
    """
    calls: list[Call] = []
    targets = [path for path in expected if files.get(path) != expected[path]]
    surplus = [path for path in files if path not in expected]
    calls += [("mkdir", {"path": folder}) for folder in sorted({parent(path) for path in targets} - {"/"})]
    for target in targets:
        sources = [path for path in surplus if files[path] == expected[target]]
        copies = [path for path in files if files[path] == expected[target]]
        if sources:
            surplus.remove(sources[0])
            calls.append(("mv", {"source": sources[0], "target": target}))
        elif copies:
            calls.append(("cp", {"source": copies[0], "target": target}))
        else:
            calls.append(("write", {"path": target, "content": expected[target]}))
    return calls + [("rm", {"path": path}) for path in surplus]


class ClumsyClerk(Clerk):
    """A clerk that leaves steps out, touches files it should not, and mistypes.

    Args:
        call_format: Format of its calls.
        rng: Source of its mistakes.
    """

    MALFORMED, LEFT_OUT, WRONG_FILE = 0.05, 0.13, 0.13
    """Probability in a turn of a call cut short, of a step of the plan left out, and of one on the wrong file."""

    def __init__(self, call_format: str, rng: np.random.Generator) -> None:
        super().__init__(call_format)
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        if self.rng.random() < self.MALFORMED and self.plan:
            return self.plan[0][0] + "("
        name, arguments = self.next_call(observation)
        draw = self.rng.random()
        if draw < self.LEFT_OUT and self.plan:
            name, arguments = self.plan.pop(0)
        elif draw < self.LEFT_OUT + self.WRONG_FILE and name in ("mv", "rm", "cp") and self.files:
            wrong = sorted(self.files)[int(self.rng.integers(len(self.files)))]
            arguments = {**arguments, ("path" if name == "rm" else "source"): wrong}
        return format_call(name, arguments, self.call_format)
