"""An environment as an MCP server: one episode, played by whoever calls its tools. `envgym serve-tools`.

The instructions of the server are the system prompt and the first observation. Every call of a tool is a turn: it is
passed to the environment as it is, mistakes too, and answered with the observation; reward and ending are in the
structured content. An environment that reads plain messages has one more tool, `send_message`. After the end every call
is answered with an error.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any, cast

from envgym.cli.options import make_in_format
from envgym.env import Step, TextEnv
from envgym.tools.environment import ToolEnv
from envgym.tools.mcp import require_mcp
from envgym.tools.parsing import format_call
from envgym.wrappers import as_step

MESSAGE_TOOL: dict[str, Any] = {
    "name": "send_message",
    "description": "Sends a message to the environment in plain text.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The message."}},
        "required": ["text"],
        "additionalProperties": False,
    },
}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "observation": {"type": "string"},
        "reward": {"type": "number"},
        "reward_components": {"type": "object", "additionalProperties": {"type": "number"}},
        "total_reward": {"type": "number"},
        "terminated": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "truncation_reason": {"type": ["string", "null"]},
        "success": {"type": ["boolean", "null"]},
        "action_error": {"type": ["string", "null"]},
    },
    "required": ["observation", "reward", "terminated", "truncated"],
}
"""Structured content of every answer."""


class ToolServer:
    """An episode whose turns are calls of MCP tools.

    Args:
        env_id: Id of a registered environment.
        seed: Seed of the episode.
        env_kwargs: Arguments of the environment's constructor, over the registered ones.

    Raises:
        UnknownIdError: No such environment.
        ValueError: The constructor does not take an argument or its value.
        MissingDependencyError: The `mcp` package, or one the environment needs, is not installed.
    """

    def __init__(self, env_id: str, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None) -> None:
        require_mcp()
        self.env = make_in_format(env_id, "hermes", **(env_kwargs or {}))  # which can express every call
        base = cast(TextEnv, self.env.unwrapped)
        self.env_id = env_id
        self.call_format = getattr(base, "call_format", "hermes")
        self.observation, _ = self.env.reset(seed=seed)
        self.instructions = "\n\n".join(text for text in (base.system_prompt, self.observation) if text)
        self.functions = [schema["function"] for schema in base.tools]
        self.takes_messages = not isinstance(base, ToolEnv) and all(
            function["name"] != MESSAGE_TOOL["name"] for function in self.functions
        )
        if self.takes_messages:
            self.functions.append(MESSAGE_TOOL)
        self.total_reward = 0.0
        self.ending: dict[str, Any] | None = None
        self.failure: str | None = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Plays a turn.

        Args:
            name: Name of a tool.
            arguments: Its arguments.

        Returns:
            The structured content, and whether the call was a mistake.

        Raises:
            RuntimeError: The environment has failed; the episode is over and means nothing.
        """
        if self.failure is not None:
            raise RuntimeError(self.failure)
        if self.ending is not None:
            return self.ending, True
        if self.takes_messages and name == MESSAGE_TOOL["name"]:
            if set(arguments) != {"text"} or not isinstance(arguments["text"], str):
                return self._mistake("send_message takes one argument, 'text', which is a string."), True
            action = arguments["text"]
        else:
            try:
                action = format_call(name, arguments, self.call_format)
            except ValueError as error:
                return self._mistake(f"this call cannot be made: {error}"), True
        try:
            step = as_step(self.env.step(action))
        except Exception as error:
            self.failure = f"the environment failed, {type(error).__name__}: {error}"
            raise RuntimeError(self.failure) from error
        self.observation = step.observation
        self.total_reward += step.reward
        content = self._content(step)
        if step.terminated or step.truncated:
            how = "terminated" if step.terminated else f"truncated: {step.info.get('truncation_reason')}"
            over = f"The episode has ended ({how}); no further call is made."
            self.ending = {**content, "observation": over, "reward": 0.0, "reward_components": {}, "action_error": over}
        return content, content["action_error"] is not None

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _content(self, step: Step) -> dict[str, Any]:
        return {
            "observation": step.observation,
            "reward": float(step.reward),
            "reward_components": dict(step.info.get("reward_components", {})),
            "total_reward": self.total_reward,
            "terminated": bool(step.terminated),
            "truncated": bool(step.truncated) and not step.terminated,
            "truncation_reason": None if step.terminated else step.info.get("truncation_reason"),
            "success": step.info.get("success"),
            "action_error": step.info.get("action_error"),
        }

    def _mistake(self, message: str) -> dict[str, Any]:
        """The answer to a call that no message can express: the environment does not see it, and it is no turn."""
        return self._content(Step.running(message, action_error=message))


async def serve(episode: ToolServer) -> None:
    """Serves an episode over stdin and stdout until the client closes them."""
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR, CallToolResult, ListToolsResult, TextContent, Tool

    tools = [
        Tool(
            name=function["name"],
            description=function.get("description", ""),
            input_schema=function["parameters"],
            output_schema=OUTPUT_SCHEMA,
        )
        for function in episode.functions
    ]

    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(_context: Any, params: Any) -> CallToolResult:
        # In this thread: environments may hold what belongs to the thread that made it, and turns come one by one.
        try:
            content, is_error = episode.call(params.name, params.arguments or {})
        except RuntimeError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
        text = TextContent(type="text", text=content["observation"])
        return CallToolResult(content=[text], structured_content=content, is_error=is_error)

    server: Server[Any] = Server(
        episode.env_id,
        version=importlib.metadata.version("envgym"),
        instructions=episode.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
