"""The HTTP interface of one SGLang server: what it is asked, and what its answers mean.

Generation goes through aiohttp, hundreds of requests at a time on an event loop. Everything else is one blocking `call`
of the standard library, so that `envgym serve` needs no aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from envgym.errors import MissingDependencyError, ServerError, ServerUnreachableError

if TYPE_CHECKING:
    import aiohttp

PauseMode = Literal["retract", "in_place", "abort"]
"""What happens to running requests while a server is paused: `retract` puts them back into the queue, to be computed
again afterwards; `in_place` keeps them with their cache; `abort` ends them."""

_MESSAGE_LENGTH = 500
_CONNECT_S = 10.0
_KEEP_ALIVE_S = 3.0
"""Below the five seconds after which the server closes an idle connection, so that none is used as it goes."""
_JSON = {"Content-Type": "application/json"}
# Servers are named by their address, so a proxy that the environment names for other traffic is not asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url: str, method: str, path: str, body: Any = None, *, timeout_s: float) -> Any:
    """One blocking request to a server.

    Args:
        url: Base address.
        method: "GET" or "POST".
        path: What is asked for.
        body: Sent as JSON; None sends nothing.
        timeout_s: How long it may take.

    Returns:
        The JSON of the answer; None where it is none.

    Raises:
        ServerError: The server refused or failed.
        ServerUnreachableError: It did not answer.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, method=method, headers=_JSON)
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise _refused(url, path, error.code, error.read()) from error
    except TimeoutError as error:
        raise ServerUnreachableError(f"{url} did not answer {path} within {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachableError(f"{url} cannot be reached: {_reason(error)}") from error
    try:
        answer_body = json.loads(content) if content else None
    except ValueError:
        return None  # some calls answer with a sentence
    if isinstance(answer_body, dict) and answer_body.get("success") is False:
        raise _refused(url, path, 200, content)
    return answer_body


def is_healthy(url: str, *, timeout_s: float = 5.0) -> bool:
    """Whether the server at a URL says that it is healthy; one that envgym has started also is while it is paused."""
    try:
        call(url, "GET", "/health", timeout_s=timeout_s)
    except ServerError:
        return False
    return True


class SGLangClient:
    """Requests to one SGLang server. Control calls block and may come from any thread; `generate` is a coroutine.

    Several event loops, in threads of their own, may generate at the same time.

    Args:
        url: Base address, for example `http://127.0.0.1:30000`.
        generate_timeout_s: How long one generation may take.
        control_timeout_s: How long one control call may take.

    Raises:
        ValueError: The address is not an http address.
        MissingDependencyError: aiohttp is not installed.
    """

    def __init__(self, url: str, *, generate_timeout_s: float = 600.0, control_timeout_s: float = 300.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the address of a server is like http://127.0.0.1:30000, got '{url}'")
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "SGLang servers are reached with aiohttp, which is not installed; pip install 'envgym[sglang]'"
            ) from error
        self.url = url.rstrip("/")
        self.generate_timeout_s = generate_timeout_s
        self.control_timeout_s = control_timeout_s
        self._connections: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None]]] = {}
        """Of each event loop, and what closes them."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SGLangClient('{self.url}')"

    # -- generation ---------------------------------------------------------------------------------------------------

    async def generate(self, request: Mapping[str, Any] | bytes, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Sends one `/generate` request and returns the answer: `output_ids` and `meta_info`.

        Args:
            request: The body, or its JSON.
            timeout_s: How long it may take; `generate_timeout_s` when None.

        Raises:
            ServerError: The server refused the request, or failed.
            ServerUnreachableError: It did not answer in time, or the connection broke. Whether it has seen the request
                is then unknown.
        """
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        return await self._send("POST", "/generate", body, self.generate_timeout_s if timeout_s is None else timeout_s)

    async def abort_soon(self, request_id: str, *, timeout_s: float = 2.0) -> None:
        """Ends the requests whose id begins so, running or queued; unknown ids are ignored.

        Raises:
            ServerError: As for `generate`.
        """
        await self._send("POST", "/abort_request", json.dumps({"rid": request_id}).encode(), timeout_s)

    async def fetch(self, path: str, *, timeout_s: float) -> dict[str, Any]:
        """`model_info` or `server_info` as a coroutine, by path.

        Raises:
            ServerError: As for `generate`.
        """
        return await self._send("GET", path, None, timeout_s)

    async def _send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Any:
        import aiohttp

        http = await self._http()
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(_CONNECT_S, timeout_s))
        try:
            async with http.request(method, self.url + path, data=body, headers=_JSON, timeout=limit) as answer:
                content = await answer.read()
        except TimeoutError as error:
            raise ServerUnreachableError(f"{self.url} did not answer {path} within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachableError(f"{self.url} cannot be reached: {_reason(error)}") from error
        if answer.status != 200:
            raise _refused(self.url, path, answer.status, content)
        try:
            return json.loads(content) if content else None
        except ValueError as error:
            raise _refused(self.url, path, answer.status, content) from error

    async def _http(self) -> aiohttp.ClientSession:
        """The connections of the running event loop. They end with it: the loop closes its asynchronous generators."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._connections.get(loop)
        if found is not None and not found[0].closed:
            return found[0]
        import aiohttp

        # As many connections as there are episodes: the server queues better than a client can.
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S))
        lifetime = self._lifetime(loop, http)
        with self._lock:
            for other in [loop_ for loop_ in self._connections if loop_.is_closed()]:
                self._connections.pop(other)[0].detach()
            self._connections[loop] = http, lifetime
        await anext(lifetime)
        return http

    async def _lifetime(self, loop: asyncio.AbstractEventLoop, http: aiohttp.ClientSession) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._connections.pop(loop, None)
            await http.close()

    async def close(self) -> None:
        """Closes the connections of the running event loop."""
        with self._lock:
            found = self._connections.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()

    # -- control ------------------------------------------------------------------------------------------------------

    def model_info(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What the server says about its model: `model_path`, `weight_version` and more."""
        return self._call("GET", "/model_info", timeout_s=timeout_s)

    def server_info(self) -> dict[str, Any]:
        """The server's arguments and state: `context_length`, `dtype`, `tp_size`, `max_total_num_tokens` and more."""
        return self._call("GET", "/server_info")

    def pause(self, mode: PauseMode = "retract") -> None:
        """Stops sampling until `resume`."""
        self.post("/pause_generation", mode=mode)

    def resume(self) -> None:
        """Goes on sampling."""
        self.post("/continue_generation")

    def flush_cache(self) -> None:
        """Drops the prefix cache; refused while requests run."""
        self.post("/flush_cache")

    def name_weights(self, weight_version: str) -> None:
        """Changes the name of the present weights; running requests go on."""
        self.post("/update_weight_version", new_version=weight_version, abort_all_requests=False)

    def weight_checksums(self) -> list[dict[str, str]]:
        """For each tensor-parallel rank, the checksum of each parameter under the server's own name."""
        answer = self.post("/weights_checker", action="checksum")
        return [dict(rank["checksums"]) for rank in answer["ranks"]]

    def post(self, path: str, **fields: Any) -> Any:
        """Any other control call.

        Raises:
            ServerError: The server refused or failed.
            ServerUnreachableError: It did not answer within `control_timeout_s`.
        """
        return self._call("POST", path, fields)

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        return call(self.url, method, path, body, timeout_s=self.control_timeout_s if timeout_s is None else timeout_s)


def _refused(url: str, path: str, status: int, body: bytes) -> ServerError:
    text = body.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, AttributeError):  # else it is no JSON, or no object
        answer = json.loads(text)
        inner = answer.get("error", answer)
        text = str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    error = ServerError(f"{url}{path} answered {status}: {text[:_MESSAGE_LENGTH] or 'nothing'}")
    error.status = status
    return error


def _reason(error: BaseException) -> str:
    """What a connection error says; the reason inside where the outer one says nothing."""
    inner = getattr(error, "reason", None) or error
    return str(inner) or type(inner).__name__
