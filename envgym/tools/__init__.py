"""Tools: typed functions that a policy calls, and environments made of them."""

from envgym.tools.environment import ToolEnv, tool
from envgym.tools.parsing import CALL_FORMATS, CallError, CallFormat, ToolCall, format_call, parse_calls
from envgym.tools.tool import ArgumentError, Tool, ToolError, ToolResult

__all__ = [
    "CALL_FORMATS",
    "ArgumentError",
    "CallError",
    "CallFormat",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "ToolResult",
    "format_call",
    "parse_calls",
    "tool",
]
