"""A tool: a typed Python function, its JSON schema, and strict validation of what a policy passes to it."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from envgym.tools.parsing import BareWord, ToolCall, shorten


class ToolError(Exception):
    """Raised by a tool to answer the policy with an error; the message becomes the observation.

    Any other exception of a tool is a fault of its code: it propagates, and the episode is recorded as failed.
    """


class ArgumentError(ToolError):
    """The arguments of a call do not fit the tool; the message names the argument and what it should be."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool may return instead of a plain value.

    Attributes:
        text: What the policy sees.
        reward: Process reward of the call: named components, or a number (its component then has the tool's name).
        terminal: Whether the call ends the episode.
        success: Whether the task was solved; read when `terminal`.
        info: Further entries for the step's `info`; JSON-serialisable.
    """

    text: str
    reward: float | Mapping[str, float] = 0.0
    terminal: bool = False
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Tool:
    """A tool made from a typed function.

    Example::

        def add(left: int, right: int = 1) -> int:
            \"\"\"Adds two numbers.

            Args:
                left: The first number.
                right: The second.
            \"\"\"
            return left + right

        Tool(add).schema["function"]["name"]                 # "add"
        Tool(add).bind(ToolCall("add", {"left": 2}))         # {"left": 2, "right": 1}
        Tool(add).bind(ToolCall("add", {"left": "2"}))       # ArgumentError: add: 'left' should be a valid integer.

    Args:
        function: Every parameter needs a type annotation; the docstring gives the descriptions.
        method: Whether the first parameter is `self` and not part of the tool.

    Raises:
        ValueError: A parameter has no annotation, cannot be named in a call, or has a type pydantic cannot check.
    """

    def __init__(self, function: Callable[..., Any], *, method: bool = False) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        parameters = list(inspect.signature(function).parameters.values())[int(method) :]
        self.parameters = tuple(parameter.name for parameter in parameters)
        self._model = _model(self.name, function, parameters)
        schema = self._model.model_json_schema(by_alias=True)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        for name, description in _descriptions(function).items():
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", description)
        for value in schema["properties"].values():
            value.pop("title", None)
        summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        self.schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": summary, "parameters": schema},
        }

    @property
    def usage(self) -> str:
        """The tool with its parameter names, for example `get(key)`."""
        return f"{self.name}({', '.join(self.parameters)})"

    def bind(self, call: ToolCall) -> dict[str, Any]:
        """The arguments the function is to be called with: strictly validated, defaults filled in.

        Raises:
            ArgumentError: An argument is missing, unknown, given twice or of the wrong type.
        """
        arguments = self._by_name(call)
        try:
            model = self._model.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            raise ArgumentError(f"{self.usage}: {_explain(error)}.") from error
        return {name: getattr(model, f"p{i}") for i, name in enumerate(self.parameters)}

    def _by_name(self, call: ToolCall) -> dict[str, Any]:
        """The arguments by name, bare words as what the schema asks for."""
        if len(call.positional) > len(self.parameters):
            raise ArgumentError(f"{self.usage} takes {len(self.parameters)} arguments, got {len(call.positional)}.")
        arguments = dict(call.arguments)
        for name, value in zip(self.parameters, call.positional, strict=False):
            if name in arguments:
                raise ArgumentError(f"{self.usage}: '{name}' is given twice.")
            arguments[name] = value
        return {k: self._read_word(k, v) if isinstance(v, BareWord) else v for k, v in arguments.items()}

    def _read_word(self, name: str, word: BareWord) -> Any:
        """A bare word as the type the schema asks for; as text when it cannot be that, for validation to reject."""
        schema = self.schema["function"]["parameters"]["properties"].get(name, {})
        types = {option.get("type") for option in schema.get("anyOf", [schema])}
        if "string" in types and not (word == "null" and "null" in types):
            return str(word)
        try:
            value = json.loads(word)
        except (ValueError, RecursionError):
            return str(word)
        return str(word) if isinstance(value, float) and value - value != 0 else value


def as_result(value: Any) -> ToolResult:
    """What a tool returned as a `ToolResult`: text stays text, None is "ok", anything else is shown as JSON.

    Raises:
        TypeError: The value cannot be shown as JSON (a fault of the tool).
    """
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(value)
    return ToolResult("ok" if value is None else json.dumps(value, ensure_ascii=False))


def _model(name: str, function: Callable[..., Any], parameters: list[inspect.Parameter]) -> type[BaseModel]:
    """A strict pydantic model of the parameters; fields are numbered so that no name can clash with pydantic's own."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(
            f"the annotations of tool '{name}' cannot be resolved: {error}; define the type at module level"
        ) from error
    fields: dict[str, Any] = {}
    for i, parameter in enumerate(parameters):
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise ValueError(
                f"tool '{name}': parameter '{parameter.name}' cannot be passed by name; use plain parameters"
            )
        if parameter.name not in hints:
            raise ValueError(f"tool '{name}': parameter '{parameter.name}' needs a type annotation")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[f"p{i}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        return create_model(name, __config__=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False), **fields)
    except PydanticUserError as error:
        raise ValueError(f"tool '{name}': a parameter has a type that cannot be validated: {error.message}") from error


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = shorten(".".join(str(part) for part in first["loc"]))
    if first["type"] == "missing":
        return f"'{name}' is missing"
    if first["type"] == "extra_forbidden":
        return f"there is no argument '{name}'"
    if not name:
        return "the arguments are not valid JSON text"
    return f"'{name}' {first['msg'].removeprefix('Input ')}"


def _descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Descriptions of the parameters from the `Args:` section of the docstring."""
    _, found, section = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    descriptions: dict[str, str] = {}
    name = ""
    for line in section.split("\n") if found else ():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        if indent == 4 and ":" in line:
            name, _, text = line.strip().partition(":")
            descriptions[name] = text.strip()
        elif name:
            descriptions[name] = f"{descriptions[name]} {line.strip()}"
    return descriptions
