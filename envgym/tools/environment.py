"""An environment whose actions are tool calls, with a process reward for every call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from envgym.env import Step, TextEnv
from envgym.tools.parsing import CALL_FORMATS, CallError, ToolCall, parse_calls, shorten
from envgym.tools.tool import ArgumentError, Tool, ToolError, as_result

_Method = TypeVar("_Method", bound=Callable[..., Any])


def tool(method: _Method) -> _Method:
    """Marks a method of a `ToolEnv` as a tool the policy may call. Its parameters need type annotations."""
    method.__envgym_tool__ = True  # type: ignore[attr-defined]
    return method


class ToolEnv(TextEnv):
    """Base class of environments played through tools.

    Subclasses implement `reset` and declare tools as methods::

        class Lookup(ToolEnv):
            @tool
            def get(self, key: str) -> ToolResult:
                \"\"\"Looks a record up.\"\"\"
                return ToolResult(self.records[key], reward={"progress": 0.1})

    A message may hold several calls. They run in order until one ends the episode or cannot be run; the observation has
    one line for each call that was answered. A call that cannot be read, names no tool or has wrong arguments is never
    executed: the policy is told what is wrong (`action_error`) and the component "malformed" costs the penalty. A
    `ToolError` is an answer like any other; any other exception of a tool propagates.

    Args:
        call_format: "hermes" for language models, "function" for small ones; see `envgym.tools.parsing`.
        malformed_penalty: Subtracted for a message with a malformed call, at most once a turn; >= 0.
        max_calls: Most calls of one message; >= 1.

    Raises:
        ValueError: An argument is out of its range.
    """

    toolbox: ClassVar[Mapping[str, Tool]] = {}
    """The declared tools by name; `tools` holds their schemas."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        methods: list[Any] = [getattr(cls, name, None) for name in names]
        declared = [Tool(method, method=True) for method in methods if getattr(method, "__envgym_tool__", False)]
        cls.toolbox = {entry.name: entry for entry in declared}
        if "tools" not in vars(cls):
            cls.tools = tuple(entry.schema for entry in declared)

    def __init__(self, *, call_format: str = "hermes", malformed_penalty: float = 0.05, max_calls: int = 8) -> None:
        if call_format not in CALL_FORMATS:
            raise ValueError(f"call_format must be one of {', '.join(CALL_FORMATS)}, got {call_format!r}")
        if not (malformed_penalty >= 0 and math.isfinite(malformed_penalty)):
            raise ValueError(f"malformed_penalty must be 0 or positive, got {malformed_penalty}")
        if max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, got {max_calls}")
        self.call_format = call_format
        self.malformed_penalty = malformed_penalty
        self.max_calls = max_calls

    def step_info(self) -> dict[str, Any]:
        """Further entries for the `info` of a step that does not end the episode, for example `success=False`."""
        return {}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Runs the calls of a message; see the class."""
        calls = parse_calls(action, self.call_format, max_calls=self.max_calls)
        calls = calls or [CallError(f"No call. Expected {self._usage()}.")]
        role = "tool" if isinstance(calls[0], ToolCall) else "user"
        lines: list[str] = []
        components: dict[str, float] = {}
        info: dict[str, Any] = {}
        action_error: str | None = None
        for call in calls:
            try:
                declared, arguments = self._bind(call)
            except ArgumentError as error:
                action_error = str(error)
                lines.append(action_error)
                components["malformed"] = components.get("malformed", 0.0) - self.malformed_penalty
                break
            try:
                result = as_result(declared.function(self, **arguments))
            except ToolError as error:
                action_error = str(error)
                lines.append(action_error)
                continue
            lines.append(result.text)
            rewards = result.reward if isinstance(result.reward, Mapping) else {declared.name: result.reward}
            for name, value in rewards.items():
                components[name] = components.get(name, 0.0) + value
            info.update(result.info)
            if result.terminal:
                return Step.terminal(
                    "\n".join(lines), components, success=result.success, role=role, action_error=action_error, **info
                )
        return Step.running(
            "\n".join(lines), components, role=role, action_error=action_error, **{**self.step_info(), **info}
        )

    def _bind(self, call: ToolCall | CallError) -> tuple[Tool, dict[str, Any]]:
        """The tool a call names and its validated arguments; an `ArgumentError` says why there is none."""
        if isinstance(call, CallError):
            raise ArgumentError(call.message)
        declared = self.toolbox.get(call.name)
        if declared is None:
            raise ArgumentError(f"Unknown tool '{shorten(call.name)}'. Tools: {', '.join(self.toolbox)}.")
        return declared, declared.bind(call)

    def _usage(self) -> str:
        if self.call_format == "hermes":
            return '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        return " or ".join(declared.usage for declared in self.toolbox.values())
