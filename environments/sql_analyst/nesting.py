"""How large a query becomes when SQLite copies each WITH clause to every place that refers to it.

SQLite does so before anything else, and neither its limits nor its progress handler see it: a few lines in which each
clause refers twice to the one before become a thousand million subqueries.
"""

from __future__ import annotations

import re

MAX_SUBQUERIES = 500
"""SELECTs that a query may become."""

_TOKEN = re.compile(r"""'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|\w+|\S""", re.DOTALL)


def num_subqueries(sql: str) -> int:
    """At least as many SELECTs as SQLite makes of a query; counting stops above `MAX_SUBQUERIES`."""
    tokens = [_plain(token) for token in _TOKEN.findall(sql) if not token.startswith(("'", "--", "/*"))]
    bodies: dict[str, list[tuple[int, int]]] = {}
    for place, token in enumerate(tokens):
        if token == "AS" and (found := _definition(tokens, place)) is not None:
            name, start, end = found
            bodies.setdefault(name, []).append((start, end))
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 1  # of a clause that refers to itself, which is not copied
            sizes[name] = sum(length(start, end) for start, end in bodies[name])
        return sizes[name]

    def length(start: int, end: int) -> int:
        total = 0
        for place in range(start, end):
            token = tokens[place]
            if token == "SELECT":
                total += 1
            elif token in bodies and tokens[place + 1 : place + 2] != ["."]:  # followed by a dot it names a column
                total += size(token)
            if total > MAX_SUBQUERIES:
                break
        return total

    return length(0, len(tokens))


def _plain(token: str) -> str:
    """A token in upper case and without quotes."""
    return (token[1:-1] if token[0] in '"`[' and len(token) > 1 else token).upper()


def _definition(tokens: list[str], place: int) -> tuple[str, int, int] | None:
    """The name before an AS and the bounds of the query behind it; None where this AS begins none."""
    start = place + 1
    while tokens[start : start + 1] in (["NOT"], ["MATERIALIZED"]):
        start += 1
    if tokens[start : start + 1] != ["("]:
        return None
    name = place - 1
    if name >= 0 and tokens[name] == ")":  # a list of columns stands between
        while name >= 0 and tokens[name] != "(":
            name -= 1
        name -= 1
    if name < 0:
        return None
    depth = 0
    for end in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[end], 0)
        if depth == 0:
            return tokens[name], start, end
    return tokens[name], start, len(tokens)
