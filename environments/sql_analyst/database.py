"""A shop as an in-memory SQLite database that answers queries and nothing else."""

from __future__ import annotations

import re
import sqlite3
import time
import typing
from dataclasses import dataclass, field
from typing import Any

from envgym.environments.sql_analyst.nesting import MAX_SUBQUERIES, num_subqueries
from envgym.environments.sql_analyst.shop import ROW_TYPES, Shop

MAX_ROWS = 20
"""Rows of a result that are shown."""
MAX_OPERATIONS = 3_000_000
"""Operations of SQLite's virtual machine that a query may take; a count is the same on every machine, a time is not."""
MAX_CPU_S = 1.0
"""Seconds of CPU that it may take: some operations, such as trimming or matching texts, cost far more than others."""
MAX_SQL = 4000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2000,  # characters of a text and bytes of a row: the dearest functions are quadratic
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_SQL,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
}
_CHECK_EVERY = 100
_CELL = 60
_FUNCTIONS = frozenset(
    {
        *("abs", "avg", "count", "group_concat", "max", "min", "round", "sum", "total"),
        *("coalesce", "ifnull", "iif", "nullif", "typeof", "date", "julianday", "strftime"),
        *("glob", "instr", "length", "like", "lower", "ltrim", "replace", "rtrim", "substr", "substring", "trim"),
        *("upper", "dense_rank", "first_value", "lag", "last_value", "lead", "ntile", "rank", "row_number"),
    }
)
"""Functions a query may use: none that asks the clock, draws random numbers, or makes large texts."""


class QueryError(Exception):
    """The query was refused or failed; the message says why."""


@dataclass(frozen=True)
class QueryResult:
    """What a query brought.

    Attributes:
        columns: Names of the columns.
        rows: The first rows, at most `MAX_ROWS`.
        more: Whether there are further rows.
        tables: Tables the query read.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False
    tables: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        lines = [" | ".join(self.columns), *(" | ".join(map(_show, row)) for row in self.rows)]
        return "\n".join([*lines, *(["..."] if self.more else []), *(["(no rows)"] if not self.rows else [])])


class Database:
    """Opens a connection when it is first asked something. It may be asked from one thread after another, and copied or
    pickled: what is not yet open, or no longer, opens again with the same rows.

    Args:
        shop: The rows of the tables.
    """

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._connection: sqlite3.Connection | None = None
        self._inner: sqlite3.Connection | None = None  # works the date functions out
        self._tables: set[str] = set()
        self._operations = 0
        self._deadline = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None, "_inner": None}

    def close(self) -> None:
        """Frees the connection; closing again does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    def describe(self, table: str) -> str:
        """The columns of a table with their types, and its number of rows.

        Raises:
            QueryError: There is no such table.
        """
        row_type = ROW_TYPES.get(table)
        if row_type is None:
            raise QueryError(f"no such table; tables: {', '.join(ROW_TYPES)}")
        columns = ", ".join(f"{name} {kind}" for name, kind in _columns(row_type))
        return f"{table}({columns}), {len(getattr(self.shop, table))} rows"

    def query(self, sql: str) -> QueryResult:
        """Runs one SELECT.

        Args:
            sql: The statement; at most 4,000 characters.

        Raises:
            QueryError: It is no single SELECT, SQLite rejects it, or it takes too long.
        """
        if len(sql) > MAX_SQL:
            raise QueryError(f"a query has at most {MAX_SQL} characters")
        if num_subqueries(sql) > MAX_SUBQUERIES:
            raise QueryError("its WITH clauses refer to one another too often")
        if self._connection is None:
            self._connection = self._open()
        self._tables, self._operations = set(), 0
        self._deadline = time.thread_time() + MAX_CPU_S
        try:
            with_rows = self._connection.execute(sql)
            rows = with_rows.fetchmany(MAX_ROWS + 1)
            columns = tuple(str(column[0])[:_CELL] for column in with_rows.description or ())
            with_rows.close()
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryError(self._explain(error)) from error
        if not columns:
            raise QueryError("there is no SELECT in it")
        return QueryResult(columns, tuple(rows[:MAX_ROWS]), len(rows) > MAX_ROWS, frozenset(self._tables))

    def _open(self) -> sqlite3.Connection:
        # No cache of statements: the authorizer, which notes the tables, is asked only when one is compiled.
        connection = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
        for table, row_type in ROW_TYPES.items():
            columns = _columns(row_type)
            connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)})")
            places = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", getattr(self.shop, table))
        connection.commit()
        self._inner = sqlite3.connect(":memory:", check_same_thread=False)
        for name in ("date", "julianday", "strftime"):
            connection.create_function(name, -1, _calendar(name, self._inner), deterministic=True)
        for category, limit in _LIMITS.items():
            connection.setlimit(category, limit)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._progress, _CHECK_EVERY)
        return connection

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            self._tables.add(str(first))
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _progress(self) -> int:
        self._operations += _CHECK_EVERY
        return int(self._operations > MAX_OPERATIONS or time.thread_time() > self._deadline)

    def _explain(self, error: Exception) -> str:
        text = " ".join(str(error).split())[:160]
        if isinstance(error, UnicodeError):
            return "the query is no valid text"
        if "user-defined function" in text:
            return "a date function was called with the wrong arguments; the clock cannot be asked"
        if "interrupted" in text or "too many VDBE" in text:
            return "the query takes too long"
        if "not authorized" in text or "prohibited" in text:
            return f"only SELECT on the tables and common functions is allowed ({text})"
        return text


def _columns(row_type: type) -> list[tuple[str, str]]:
    """Names and SQL types of the columns of a table."""
    kinds = {int: "INTEGER", str: "TEXT"}
    return [(name, kinds.get(hint, "TEXT")) for name, hint in typing.get_type_hints(row_type).items()]


def _show(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= 1e6 else f"{round(value, 4):g}" if abs(value) < 1e3 else f"{value:.2f}"
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."


def _calendar(name: str, inner: sqlite3.Connection) -> Any:
    """SQLite's date function of this name, worked out by another connection, which refuses to ask the clock."""

    def function(*arguments: Any) -> Any:
        times = arguments[1:] if name == "strftime" else arguments
        if not times or any(word in str(value).lower() for value in times for word in ("now", "local", "utc")):
            raise ValueError("neither the clock nor the time zone can be asked")
        return inner.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]

    return function
