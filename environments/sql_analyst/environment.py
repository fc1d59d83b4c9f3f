"""Answer questions about a shop by querying its database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from envgym import TextEnv
from envgym.environments.sql_analyst.database import Database, QueryError, QueryResult
from envgym.environments.sql_analyst.question import Answer, is_right
from envgym.environments.sql_analyst.questions import draw_question
from envgym.environments.sql_analyst.shop import ROW_TYPES, draw_shop
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, ToolError, ToolResult, format_call, tool

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

MAX_SHOWN_ROWS, MAX_SHOWN_COLUMNS = 5, 6
"""Largest result that counts as having found the answer, so that listing a whole table does not."""


class SqlAnalyst(ToolEnv):
    """A generated shop in SQLite, a question about it, tools to look at the tables and to query them, and `answer`.

    An episode::

        How many customers live in Bern?        list_tables()
        customers, suppliers, ...               describe(customers)
        customers(id INTEGER, ..., 30 rows      query("SELECT COUNT(*) FROM customers WHERE city = 'Bern'")
        COUNT(*)
        4                                       answer(4)
        right

    Reward components: "tables" +0.02 for the first list_tables; "describe" 0.08, divided by the number of tables the
    answer needs, for the first look at each of them; "query" +0.1 for the first query that reads all of them; "found"
    +0.2 for the first such query whose result is small and holds the answer; "useless" -0.01 for a call that brings
    none of these; "answer" +1 for the right answer; "malformed" -0.05. A query that fails is answered with SQLite's
    error and neither paid nor fined. A wrong answer ends the episode without success.

    Args:
        tables: Number of tables the answer needs: one number, or the lowest and the highest; between 1 and 4.
        call_format: "function" or "hermes"; see `envgym.tools.parsing`.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = (
        "Answer the question about a shop's SQLite database with list_tables, describe, query (SELECT only) and "
        "answer. Answer numbers in digits, names and dates as they stand in the database."
    )
    max_turns = 16

    def __init__(self, *, tables: int | Sequence[int] = (1, 4), call_format: str = "function") -> None:
        super().__init__(call_format=call_format)
        low, high = (tables, tables) if isinstance(tables, int) else tables
        if not 1 <= low <= high <= 4:
            raise ValueError(f"tables must be a number or a range (low, high) within 1 to 4, got {tables!r}")
        self.tables = (low, high)
        self.action_space = TextSpace(self._examples())
        self._database: Database | None = None
        self._answer: Answer = ""
        self._needed: frozenset[str] = frozenset()
        self._paid: set[str] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a shop and a question about it.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The question, and info.
        """
        TextEnv.reset(self, seed=seed)
        self.close()
        shop = draw_shop(self.np_random)
        question, parameters, self._answer = draw_question(shop, self.tables, self.np_random)
        self._database = Database(shop)
        self._needed = question.tables
        self._paid = set()
        return question.text.format(**parameters), {"success": False}

    def step_info(self) -> dict[str, Any]:
        return {"success": False}

    def close(self) -> None:
        """Frees the database."""
        if self._database is not None:
            self._database.close()

    @tool
    def list_tables(self) -> ToolResult:
        """Names the tables of the database."""
        return ToolResult(", ".join(ROW_TYPES), self._pay({"tables": 0.02}))

    @tool
    def describe(self, table: str) -> ToolResult:
        """Shows the columns of a table, and how many rows it has.

        Args:
            table: Name of the table.
        """
        try:
            text = self._open.describe(table)
        except QueryError as error:
            raise ToolError(f"describe: {error}") from error
        share = {"describe": 0.08 / len(self._needed)} if table in self._needed else {}
        return ToolResult(text, self._pay(share, key=f"describe {table}"))

    @tool
    def query(self, sql: str) -> ToolResult:
        """Runs one SELECT and shows the first 20 rows of its result.

        Args:
            sql: The statement. Nothing but reading is allowed.
        """
        try:
            result = self._open.query(sql)
        except QueryError as error:
            raise ToolError(f"query: {error}") from error
        earned = {}
        if result.tables >= self._needed:
            earned = {"query": 0.1, **({"found": 0.2} if self._holds_answer(result) else {})}
        return ToolResult(str(result), self._pay(earned))

    @tool
    def answer(self, value: str | int | float) -> ToolResult:
        """Gives the answer and ends the task.

        Args:
            value: A number, a name or a date.
        """
        right = is_right(str(value), self._answer)
        return ToolResult("right" if right else "wrong", {"answer": float(right)}, terminal=True, success=right)

    def solver(self) -> Player:
        """A player that knows a query for every kind of question, and answers what it returns."""
        from envgym.environments.sql_analyst.players import Analyst

        return Analyst(self.call_format)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that skips looks, breaks queries, forgets conditions and answers too early; about 50 % success."""
        from envgym.environments.sql_analyst.players import ClumsyAnalyst

        return ClumsyAnalyst(self.call_format, rng)

    @property
    def _open(self) -> Database:
        assert self._database is not None, "reset comes first"
        return self._database

    def _pay(self, components: dict[str, float], key: str | None = None) -> dict[str, float]:
        """What of these components has not been paid before; a small cost where that is none of it.

        Args:
            components: The components that are due.
            key: What is noted as paid instead of the component's name.
        """
        fresh = {name: value for name, value in components.items() if (key or name) not in self._paid}
        self._paid |= {key or name for name in fresh}
        return fresh or {"useless": -0.01}

    def _holds_answer(self, result: QueryResult) -> bool:
        if len(result.rows) > MAX_SHOWN_ROWS or len(result.columns) > MAX_SHOWN_COLUMNS:
            return False
        return any(is_right(str(value), self._answer) for row in result.rows for value in row)

    def _examples(self) -> list[str]:
        """Well-formed calls for the random agent."""
        calls: list[tuple[str, dict[str, Any]]] = [("list_tables", {})]
        calls += [("describe", {"table": table}) for table in ROW_TYPES]
        calls += [("query", {"sql": f"SELECT COUNT(*) FROM {table}"}) for table in ROW_TYPES]
        calls += [("query", {"sql": f"SELECT * FROM {table} LIMIT 3"}) for table in ROW_TYPES]
        calls += [("answer", {"value": str(number)}) for number in range(8)]
        return [format_call(name, arguments, self.call_format) for name, arguments in calls]
