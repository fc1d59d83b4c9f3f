"""Scripted players of the SQL analyst."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.sql_analyst.questions import QUESTIONS
from envgym.environments.sql_analyst.shop import ROW_TYPES
from envgym.tools import format_call


class Analyst(Player):
    """Recognises the kind of question, looks at the tables it needs, runs its query and answers the first value.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self.plan: list[tuple[str, dict[str, Any]]] = []
        self.last = ""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        self.last, arguments = self.plan.pop(0) if self.plan else ("answer", {"value": self.first_value(observation)})
        return self.call(self.last, arguments)

    def read(self, observation: str) -> None:
        """Makes a plan, where the observation is a question."""
        for question in QUESTIONS:
            if (parameters := question.read(observation)) is not None:
                self.plan = [
                    ("list_tables", {}),
                    *(("describe", {"table": table}) for table in sorted(question.tables)),
                    ("query", {"sql": question.sql.format(**parameters)}),
                ]
                return

    def first_value(self, result: str) -> str:
        """The first value of the first row of a result, as text."""
        lines = result.split("\n")
        return lines[1].split(" | ")[0] if len(lines) > 1 else "0"

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return format_call(name, arguments, self.call_format)


class ClumsyAnalyst(Analyst):
    """An analyst that makes a mistake in some turns, each turn independently of the others.

    Args:
        call_format: Format of its calls.
        rng: Source of its mistakes.
    """

    MALFORMED, SKIPS, WRONG_TABLE, EARLY = 0.05, 0.15, 0.1, 0.05
    """Probability in a turn of a call cut short, a look left out, a look at any table, and an early answer."""
    BROKEN, UNCONDITIONAL = 0.25, 0.3
    """Probability that a query misses a letter, and that it misses its conditions."""

    def __init__(self, call_format: str, rng: np.random.Generator) -> None:
        super().__init__(call_format)
        self.rng = rng
        self.sql = ""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self.read(observation)
        draw = self.rng.random()
        if self.last == "query" and "action_error" in info and draw < 0.5 and self.sql:
            return self.query(self.sql)
        if draw < self.EARLY:
            return self.call("answer", {"value": str(int(self.rng.integers(20)))})
        draw -= self.EARLY
        if len(self.plan) > 1 and draw < self.SKIPS:
            self.plan.pop(0)
        elif len(self.plan) > 1 and draw < self.SKIPS + self.WRONG_TABLE:
            return self.call("describe", {"table": tuple(ROW_TYPES)[int(self.rng.integers(len(ROW_TYPES)))]})
        if self.plan and self.plan[0][0] == "query":
            self.sql = self.plan.pop(0)[1]["sql"]
            return self.query(self.sql)
        action = super().act(observation, info)
        return action[: int(self.rng.integers(1, len(action)))] if self.rng.random() < self.MALFORMED else action

    def query(self, sql: str) -> str:
        """A query with its flaws."""
        self.last = "query"
        draw = self.rng.random()
        if draw < self.UNCONDITIONAL:
            sql = re.sub(r" WHERE (?!.*(?:EXISTS|SELECT)).*?(?= GROUP| ORDER|\)|$)", "", sql)
        elif draw < self.UNCONDITIONAL + self.BROKEN:
            cut = int(self.rng.integers(len(sql)))
            sql = sql[:cut] + sql[cut + 1 :]
        return self.call("query", {"sql": sql})
