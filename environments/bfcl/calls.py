"""Calls in the two formats of the bridge: "hermes", and BFCL's own list of Python calls.

"python" is what BFCL asks prompted models for, the whole message (backticks around it and missing brackets are fine)::

    [cd(folder='document'), mv(source='a.txt', destination='b.txt')]

It is read with `ast` and never evaluated: names are plain, arguments are literals, nothing is filled in or converted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from typing import Any

from envgym.tools import CallError, ToolCall, format_call, parse_calls

CALL_FORMATS = ("hermes", "python")
MAX_CALLS = 64
"""Most calls of one message; no user turn of BFCL needs more than 34."""
MAX_CHARACTERS = 100_000
"""Longest message in the "python" format that is read."""
MAX_INTEGER = 10**4300
"""Python itself neither reads nor writes longer decimal numbers."""

_START = re.compile(r"\[?\s*([A-Za-z_][\w.]*)\s*\(", re.ASCII)


def read_calls(text: str, call_format: str, names: Collection[str]) -> list[ToolCall | CallError]:
    """The calls of a message in order, up to and including the first that cannot be read.

    Args:
        text: Text of the message; what stands before a closing `</think>` is left aside.
        call_format: "hermes" or "python".
        names: Names of the declared tools. A "python" message that cannot be read counts as an attempted call if it
            begins with one of them and a parenthesis; otherwise it is plain text.

    Returns:
        Empty when the message holds no call: it is then an answer to the user.
    """
    text = text.rpartition("</think>")[2]
    if call_format == "hermes":
        return parse_calls(text, "hermes", max_calls=MAX_CALLS)
    text = text.strip("`\n ")
    start = _START.match(text)
    if start is None:
        return []
    if len(text) > MAX_CHARACTERS:
        return [CallError(f"Malformed call: more than {MAX_CHARACTERS} characters.")] if start[1] in names else []
    text = text if text.startswith("[") else f"[{text}"
    calls = read_list(text if text.endswith("]") else f"{text}]")
    if calls is None:
        if start[1] not in names:
            return []
        return [CallError("Malformed call: write [name(parameter=value, ...), ...] with literal values.")]
    if len(calls) > MAX_CALLS:
        return [*calls[:MAX_CALLS], CallError(f"Too many calls: at most {MAX_CALLS} in a message.")]
    return list(calls)


def read_list(text: str) -> list[ToolCall] | None:
    """The calls of a Python list of calls with literal arguments; None where the text is anything else."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def write_calls(calls: Iterable[tuple[str, dict[str, Any]]], call_format: str) -> str:
    """A message with these calls (name, arguments by name)."""
    if call_format == "hermes":
        return "\n".join(format_call(name, arguments, "hermes") for name, arguments in calls)
    return f"[{', '.join(_write_call(name, arguments) for name, arguments in calls)}]"


def _write_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("every argument has a name of its own")
        arguments[keyword.arg] = _literal(keyword.value)
    return ToolCall(_name(node.func), arguments, tuple(_literal(value) for value in node.args))


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    raise ValueError("a call names its function")


def _literal(node: ast.expr) -> Any:
    """The value of a literal: text, number, boolean, None, and lists, tuples and dictionaries of them."""
    match node:
        case ast.Constant(value=str() | bool() | float() | None as value):
            return value
        case ast.Constant(value=int() as value) if value < MAX_INTEGER:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool) and value < MAX_INTEGER
        ):
            return -value
        case ast.List(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_literal(element) for element in elements)
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            pairs = zip(keys, values, strict=True)
            return {_literal(key): _literal(value) for key, value in pairs if key is not None}
    raise ValueError("not a literal")
