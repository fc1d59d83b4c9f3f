"""Tools of an MCP server, added to a `ToolEnv`: `attach_mcp`. Needs the `mcp` package, the extra of that name.

What the server says about a call is an observation, its errors too. A server that has died, or no longer answers, is a
failure of the infrastructure: it raises `McpServerError`, and the episode is recorded as failed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from envgym.env import TextEnv
from envgym.errors import EnvGymError, MissingDependencyError
from envgym.tools.environment import ToolEnv
from envgym.tools.parsing import ToolCall
from envgym.tools.tool import ArgumentError, Tool, ToolError, ToolResult

GRACE_S = 5.0
"""Seconds in which a server that let a call time out must answer another request, or count as dead."""
CLOSE_S = 15.0
"""Seconds that a server gets to end; the mcp package kills its process before that."""
MAX_PAGES = 100
"""Pages of a list of tools that are read."""

ResultOf = Callable[[str, Mapping[str, Any], str], ToolResult]
"""Makes the result of a call, with its reward, from the tool's name on the server, the arguments and the answer."""
_T = TypeVar("_T")


class McpServerError(EnvGymError):
    """An MCP server cannot be started or reached, has died, or breaks the protocol."""


class McpConnection:
    """A connection to an MCP server. Several environments and threads may use it at once.

    Args:
        command: Program and arguments of a server that speaks over stdio; it is started here.
        url: Address of a server that speaks Streamable HTTP; give this or `command`.
        environment: Environment variables of the process, beside the few that the mcp package passes on.
        cwd: Folder the process runs in.
        timeout_s: Seconds that starting and listing the tools may take, and a call that sets no limit of its own.

    Raises:
        MissingDependencyError: The `mcp` package is not installed.
        ValueError: Neither or both of `command` and `url` are given, or the time-out is not positive.
        McpServerError: The server cannot be started or reached.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        if (command is None) == (url is None):
            raise ValueError("give the command of an MCP server or its url, and not both")
        if command is not None and (isinstance(command, str) or not command):
            raise ValueError(f"command must be a list of a program and its arguments, got {command!r}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self.name = url if url is not None else " ".join(command or ())
        self.timeout_s = timeout_s
        self.definitions: tuple[Any, ...] = ()
        require_mcp()
        from mcp import StdioServerParameters

        self._target: Any = url
        if command is not None:
            variables = None if environment is None else dict(environment)
            self._target = StdioServerParameters(command=command[0], args=list(command[1:]), env=variables, cwd=cwd)
        self._lock = threading.Lock()
        self._open()

    @property
    def is_alive(self) -> bool:
        """Whether the connection stands, as far as is known without using it."""
        return self._thread.is_alive() and not self._is_broken

    def call(self, tool: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None) -> str:
        """Calls a tool and returns its answer as text.

        Args:
            tool: Its name on the server.
            arguments: JSON values by name.
            timeout_s: Seconds the call may take; None takes those of the connection.

        Raises:
            ToolError: The tool answers with an error, or takes too long while the server is well.
            McpServerError: The server has died, does not answer any more, or breaks the protocol.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT

        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            called = self._client.call_tool(tool, dict(arguments), read_timeout_seconds=limit)
            result = self._run(called, limit + GRACE_S)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(f"{tool}: {error.message}") from error
            if error.code == REQUEST_TIMEOUT and self._answers():
                raise ToolError(f"{tool} took longer than {limit:g} s.") from error
            raise self._broken(f"{error.message} (code {error.code})") from error
        except Exception as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error
        text = _text(result)
        if result.is_error:
            raise ToolError(text or f"{tool} failed.")
        return text

    def restart(self) -> None:
        """Ends the connection, and the process behind it, and makes a new one.

        Raises:
            McpServerError: The server cannot be started or reached.
        """
        self.close()
        self._open()

    def close(self) -> None:
        """Ends the connection, and the process where there is one. May be called again."""
        with self._lock:
            self._end()
            self._thread.join(CLOSE_S)

    def __enter__(self) -> McpConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        with self._lock:
            self._client: Any = None
            self._loop: asyncio.AbstractEventLoop | None = None
            self._failure: BaseException | None = None
            self._is_broken = False
            ready = threading.Event()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(ready)), name=f"mcp {self.name}"[:60], daemon=True
            )
            self._thread.start()
            is_ready = ready.wait(self.timeout_s)
        if not is_ready or self._failure is not None:
            reason = f"no answer within {self.timeout_s:g} s" if self._failure is None else _reason(self._failure)
            self._is_broken = True
            self._end()
            raise McpServerError(f"the MCP server '{self.name}' cannot be used: {reason}")

    def _end(self) -> None:
        """Asks the thread to end the connection."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self, ready: threading.Event) -> None:
        """Holds the connection open until it is closed, in a thread of its own with everything the client does."""
        from mcp import Client

        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        serving = asyncio.current_task()
        watch = asyncio.create_task(self._stop.wait())
        watch.add_done_callback(lambda _: None if ready.is_set() or serving is None else serving.cancel())
        try:
            async with Client(self._target, read_timeout_seconds=self.timeout_s) as client:
                self.definitions = tuple(await _list_tools(client))
                self._client = client
                ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._failure = error
        finally:
            watch.cancel()
            ready.set()

    def _run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """Runs something of the client in its thread, from any other."""
        if not self.is_alive or self._loop is None:
            coroutine.close()
            raise McpServerError("the connection is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def _answers(self) -> bool:
        """Whether the server still answers anything."""
        try:
            self._run(self._client.list_tools(cache_mode="bypass"), GRACE_S)
        except Exception:
            return False
        return True

    def _broken(self, reason: str) -> McpServerError:
        self._is_broken = True
        return McpServerError(f"the MCP server '{self.name}' failed: {reason}")


class McpTool(Tool):
    """A tool of an MCP server in the form a `ToolEnv` calls.

    Args:
        definition: What the server lists.
        connection: The connection to it.
        name: Name for the policy.
        timeout_s: Seconds a call may take.
        result_of: Makes the results; None shows the answer and pays nothing.

    Raises:
        McpServerError: The schema of its arguments is no JSON schema.
    """

    def __init__(
        self,
        definition: Any,
        connection: McpConnection,
        *,
        name: str,
        timeout_s: float | None = None,
        result_of: ResultOf | None = None,
    ) -> None:
        import jsonschema
        import referencing

        schema = {"type": "object", **definition.input_schema}
        schema.setdefault("properties", {})
        self.name = name
        self.function = self._call
        self.parameters = tuple(schema["properties"])
        description = " ".join((definition.description or "").split())
        self.schema = {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
        self._remote_name = definition.name
        self._connection = connection
        self._timeout_s = timeout_s
        self._result_of = result_of
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            fault = f"the schema of the MCP tool '{definition.name}' is invalid: {error.message}"
            raise McpServerError(fault) from error
        # An empty registry: no reference of a schema is looked up on the network.
        self._validator = validator(schema, registry=referencing.Registry())

    def bind(self, call: ToolCall) -> dict[str, Any]:
        """The arguments to call the tool with, validated against its JSON schema. Defaults are left to the server.

        Raises:
            ArgumentError: An argument is missing, unknown, given twice or of the wrong type.
        """
        import jsonschema

        arguments = self._by_name(call)
        try:
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
            error = jsonschema.exceptions.best_match(self._validator.iter_errors(arguments))
        except (ValueError, RecursionError) as problem:
            raise ArgumentError(f"{self.usage}: the arguments are not valid JSON text.") from problem
        if error is not None:
            where = ".".join(str(part) for part in error.absolute_path)
            message = error.message if len(error.message) <= 160 else f"{error.message[:157]}..."
            raise ArgumentError(f"{self.usage}: {f'argument {where!r}: ' if where else ''}{message}.")
        return arguments

    def _call(self, _env: ToolEnv, /, **arguments: Any) -> ToolResult:
        answer = self._connection.call(self._remote_name, arguments, timeout_s=self._timeout_s)
        return ToolResult(answer) if self._result_of is None else self._result_of(self._remote_name, arguments, answer)


def attach_mcp(
    env: TextEnv,
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    connection: McpConnection | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout_s: float = 30.0,
    only: Iterable[str] | None = None,
    prefix: str = "",
    fresh: bool = False,
    result_of: ResultOf | None = None,
) -> McpConnection:
    """Adds the tools of an MCP server to an environment, beside its own.

    Closing the environment closes a connection made here. A server that has died is started again at the next reset.

    Args:
        env: A `ToolEnv`, wrapped or not. Only this instance gets the tools; in a class, attach in the constructor.
        command, url, environment, cwd: See `McpConnection`; give one of `command`, `url` and `connection`.
        connection: An open connection, which stays the caller's to close.
        timeout_s: Seconds a call may take. The policy is told when one took longer.
        only: Names of the tools to add; None adds all.
        prefix: Put before every name.
        fresh: Whether every reset restarts the server, so that what it remembers does not leak between episodes.
        result_of: Makes the result of each call, with its reward; by default the answer is shown and pays nothing.

    Returns:
        The connection.

    Raises:
        MissingDependencyError: The `mcp` package is not installed.
        ValueError: The environment is no `ToolEnv`, a tool is unknown, clashes with another or cannot be called in the
            environment's format, or the arguments do not go together.
        McpServerError: The server cannot be used.
    """
    base = env.unwrapped
    if not isinstance(base, ToolEnv):
        raise ValueError(f"tools can be attached to a ToolEnv only, and {type(base).__name__} is none")
    if fresh and connection is not None:
        raise ValueError("fresh restarts the server at every reset, which a shared connection does not allow")
    if connection is not None and (command is not None or url is not None):
        raise ValueError("give one of command, url and connection")
    own = connection is None
    link = connection or McpConnection(command=command, url=url, environment=environment, cwd=cwd, timeout_s=timeout_s)
    try:
        names = [definition.name for definition in link.definitions]
        wanted = names if only is None else list(only)
        if unknown := sorted(set(wanted) - set(names)):
            raise ValueError(f"the MCP server has no tool '{unknown[0]}'; it has {', '.join(names)}")
        added = [
            McpTool(d, link, name=prefix + d.name, timeout_s=timeout_s, result_of=result_of)
            for d in link.definitions
            if d.name in wanted
        ]
        for entry in added:
            if entry.name in base.toolbox:
                raise ValueError(f"there is a tool '{entry.name}' already; give a prefix, or name the tools with only")
            if base.call_format == "function" and not (entry.name.isidentifier() and entry.name.isascii()):
                raise ValueError(f"the 'function' call format cannot call '{entry.name}'; use call_format='hermes'")
    except Exception:
        if own:
            link.close()
        raise
    instance = cast(Any, base)
    instance.toolbox = {**base.toolbox, **{entry.name: entry for entry in added}}
    instance.tools = (*base.tools, *(entry.schema for entry in added))
    reset, close, used = instance.reset, instance.close, False

    def reset_with_server(**arguments: Any) -> Any:
        nonlocal used
        if not link.is_alive or (fresh and used):
            link.restart()
        used = True
        return reset(**arguments)

    def close_with_server() -> None:
        link.close()
        close()

    instance.reset = reset_with_server
    if own:
        instance.close = close_with_server
    return link


def require_mcp() -> None:
    """Raises a `MissingDependencyError` unless the `mcp` package is installed."""
    try:
        importlib.import_module("mcp")
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs the mcp package ({error}); install it with `pip install 'envgym[mcp]'`"
        ) from error


async def _list_tools(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise McpServerError(f"its list of tools has more than {MAX_PAGES} pages")


def _text(result: Any) -> str:
    """The answer of a call: its texts, or its structured content as JSON; anything else is named by its kind."""
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    """What went wrong, from inside the groups that task groups wrap errors in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {inspect.cleandoc(str(error))}"
