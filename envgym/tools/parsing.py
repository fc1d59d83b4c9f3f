"""Tool calls read from a policy's text, and written for scripted players.

Two formats. "hermes", for language models, any number in a message::

    <tool_call>{"name": "get", "arguments": {"key": "k7"}}</tool_call>

"function", for small models, one call on each line; bare words and numbers take the type the tool's schema gives them::

    get(k7)
    get(key="k7")

Nothing is evaluated and nothing is guessed: a call that cannot be read is a `CallError` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

CallFormat = Literal["hermes", "function"]
CALL_FORMATS: tuple[str, ...] = get_args(CallFormat)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.ASCII | re.DOTALL)
_ARGUMENT = re.compile(
    r"""\s*(?:([A-Za-z_]\w*)\s*=\s*)?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,()"'=]+)\s*(,|\Z)""",
    re.ASCII | re.DOTALL,
)
_PLAIN_WORD = re.compile(r"""[^\s,()"'=\\]+""", re.ASCII)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class BareWord(str):
    """An argument written without quotes; the tool's schema says whether it is a string, a number or a boolean."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as written, not yet checked against any tool.

    Attributes:
        name: Name of the tool.
        arguments: Arguments by name.
        positional: Arguments by position ("function" format only).
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that could not be read.

    Attributes:
        message: One sentence for the policy: what is wrong with the call.
    """

    message: str


def parse_calls(text: str, call_format: str, *, max_calls: int = 8) -> list[ToolCall | CallError]:
    """The calls of a message in order, up to and including the first that cannot be read.

    Args:
        text: Text of the message; any string.
        call_format: "hermes" (text around the calls is allowed) or "function" (every line is a call).
        max_calls: Most calls of one message; a further one is a `CallError`.

    Returns:
        Empty when the message holds no call at all; at most the last entry is a `CallError`.

    Raises:
        ValueError: Unknown format.
    """
    if call_format not in CALL_FORMATS:
        raise ValueError(f"unknown call format {call_format!r}; choose one of {', '.join(CALL_FORMATS)}")
    calls: list[ToolCall | CallError] = []
    for call in _hermes_calls(text) if call_format == "hermes" else _line_calls(text):
        if len(calls) == max_calls:
            return [*calls, CallError(f"Too many calls: at most {max_calls} in a message.")]
        calls.append(call)
        if isinstance(call, CallError):
            break
    return calls


def format_call(name: str, arguments: Mapping[str, Any], call_format: str) -> str:
    """A call as text, in the form that `parse_calls` reads back.

    Args:
        name: Name of the tool.
        arguments: JSON values by name; strings, numbers, booleans or None in the "function" format.
        call_format: "hermes" or "function".

    Raises:
        ValueError: Unknown format, or an argument the format cannot express.
    """
    if call_format == "hermes":
        body = json.dumps({"name": name, "arguments": dict(arguments)}, allow_nan=False)
        return f"{_OPEN}{body}{_CLOSE}"
    if call_format == "function":
        values = [_format_value(value) for value in arguments.values()]
        if len(values) > 1:
            values = [f"{key}={value}" for key, value in zip(arguments, values, strict=True)]
        return f"{name}({', '.join(values)})"
    raise ValueError(f"unknown call format {call_format!r}; choose one of {', '.join(CALL_FORMATS)}")


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN_WORD.fullmatch(value):
            return value
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        for letter, character in _ESCAPES.items():
            escaped = escaped.replace(character, f"\\{letter}")
        return f'"{escaped}"'
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value, allow_nan=False)
    raise ValueError(f"the 'function' call format cannot express {value!r}; use 'hermes'")


def _hermes_calls(text: str) -> Iterator[ToolCall | CallError]:
    end = 0
    while (start := text.find(_OPEN, end)) >= 0:
        start += len(_OPEN)
        end = text.find(_CLOSE, start)
        if end < 0:
            yield CallError(f"Malformed call: {_CLOSE} is missing.")
            return
        yield _parse_json_call(text[start:end])


def _parse_json_call(body: str) -> ToolCall | CallError:
    try:
        data = json.loads(body, parse_constant=_reject_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        return CallError(f"Malformed call: invalid JSON, {error.msg} at character {error.pos}.")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return CallError(f"Malformed call: invalid JSON, {reason}.")
    if not isinstance(data, dict) or set(data) != {"name", "arguments"}:
        return CallError('Malformed call: expected a JSON object with the keys "name" and "arguments".')
    if not isinstance(data["name"], str):
        return CallError('Malformed call: "name" must be a string.')
    if not is_text(data["name"]):
        return CallError('Malformed call: "name" is no text that UTF-8 can encode.')
    if not isinstance(data["arguments"], dict):
        return CallError('Malformed call: "arguments" must be a JSON object.')
    return ToolCall(data["name"], data["arguments"])


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _line_calls(text: str) -> Iterator[ToolCall | CallError]:
    return (_parse_line(line.strip()) for line in text.split("\n") if line.strip())


def _parse_line(line: str) -> ToolCall | CallError:
    match = _CALL.fullmatch(line)
    if match is None:
        return CallError("Malformed call: write name(argument).")
    name, inside = match.groups()
    positional: list[Any] = []
    arguments: dict[str, Any] = {}
    position, more = 0, bool(inside.strip())
    while more:
        argument = _ARGUMENT.match(inside, position)
        if argument is None:
            return CallError(f"Malformed call: cannot read argument {len(positional) + len(arguments) + 1}.")
        key, word, comma = argument.groups()
        value = _unquote(word) if word[0] in "\"'" else BareWord(word)
        if key is None and arguments:
            return CallError("Malformed call: an argument without a name follows one with a name.")
        if key is None:
            positional.append(value)
        elif key in arguments:
            return CallError(f"Malformed call: '{shorten(key)}' is given twice.")
        else:
            arguments[key] = value
        position, more = argument.end(), comma == ","
    return ToolCall(name, arguments, tuple(positional))


def _unquote(word: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), word[1:-1], flags=re.DOTALL)


def is_text(text: str) -> bool:
    """Whether UTF-8 can encode a string; JSON can write half of a surrogate pair, which it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shorten(text: str, limit: int = 32) -> str:
    """Text cut to `limit` characters, for quoting what a policy wrote in an error."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
