"""The HTTP interface of one SGLang server: what it is asked, and what its answers mean."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
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
        self._connections: dict[asyncio.AbstractEventLoop, _Connections] = {}
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
        if found is not None and not found.http.closed:
            return found.http
        import aiohttp

        # As many connections as there are episodes: the server queues better than a client can.
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S))
        lifetime = self._lifetime(loop, http)
        with self._lock:
            for other in [loop_ for loop_ in self._connections if loop_.is_closed()]:
                self._connections.pop(other).http.detach()
            self._connections[loop] = _Connections(http, lifetime)
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
            await found.lifetime.aclose()

    # -- what it is ---------------------------------------------------------------------------------------------------

    def is_healthy(self, *, timeout_s: float = 5.0) -> bool:
        """Whether the server answers; also while it is paused."""
        try:
            self._call("GET", "/model_info", timeout_s=timeout_s)
        except ServerError:
            return False
        return True

    def model_info(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What the server says about its model: `model_path`, `weight_version` and more."""
        return self._call("GET", "/model_info", timeout_s=timeout_s)

    def server_info(self) -> dict[str, Any]:
        """The server's arguments and state: `context_length`, `dtype`, `tp_size`, `max_total_num_tokens` and more."""
        return self._call("GET", "/server_info")

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self, mode: PauseMode = "retract") -> None:
        """Stops sampling until `resume`."""
        self._call("POST", "/pause_generation", {"mode": mode})

    def resume(self) -> None:
        """Goes on sampling."""
        self._call("POST", "/continue_generation", {})

    def flush_cache(self) -> None:
        """Drops the prefix cache; refused while requests run."""
        self._call("POST", "/flush_cache")

    def begin_weight_update(self) -> None:
        """Opens a session for tensor or distributed updates."""
        self._call("POST", "/begin_weight_update", {})

    def end_weight_update(self) -> None:
        """Closes the session."""
        self._call("POST", "/end_weight_update", {})

    def update_weights_from_tensors(self, serialised: Sequence[str], *, load_format: str | None = None) -> None:
        """Loads tensors.

        Args:
            serialised: For each tensor-parallel rank the base64 of what was pickled: a list of (name, tensor), or what
                the load format asks for.
            load_format: None, or "flattened_bucket".
        """
        self._call(
            "POST",
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": list(serialised),
                "load_format": load_format,
                "flush_cache": False,
            },
        )

    def init_weights_group(
        self, *, address: str, port: int, rank_offset: int, world_size: int, name: str, backend: str
    ) -> None:
        """Joins a process group through which weights will come; returns when all its members have joined."""
        self._call(
            "POST",
            "/init_weights_update_group",
            {
                "master_address": address,
                "master_port": port,
                "rank_offset": rank_offset,
                "world_size": world_size,
                "group_name": name,
                "backend": backend,
            },
        )

    def destroy_weights_group(self, name: str) -> None:
        """Leaves that process group."""
        self._call("POST", "/destroy_weights_update_group", {"group_name": name})

    def update_weights_from_group(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        *,
        group: str,
        load_format: str | None = None,
    ) -> None:
        """Receives tensors from the process group; returns when they are loaded."""
        self._call(
            "POST",
            "/update_weights_from_distributed",
            {
                "names": list(names),
                "dtypes": list(dtypes),
                "shapes": [list(shape) for shape in shapes],
                "group_name": group,
                "load_format": load_format,
                "flush_cache": False,
            },
        )

    def update_weights_from_disk(self, folder: str) -> None:
        """Loads a model folder that the server can read."""
        self._call("POST", "/update_weights_from_disk", {"model_path": folder, "flush_cache": False})

    def name_weights(self, weight_version: str) -> None:
        """Changes the name of the present weights; running requests go on."""
        self._call("POST", "/update_weight_version", {"new_version": weight_version, "abort_all_requests": False})

    def weight_checksums(self) -> list[dict[str, str]]:
        """For each tensor-parallel rank, the checksum of each parameter under the server's own name."""
        answer = self._call("POST", "/weights_checker", {"action": "checksum"})
        return [dict(rank["checksums"]) for rank in answer["ranks"]]

    def release_memory(self, tags: Sequence[str] = ("kv_cache", "weights")) -> None:
        """Gives the device's memory back until `restore_memory`; needs a server with its memory saver on."""
        self._call("POST", "/release_memory_occupation", {"tags": list(tags)})

    def restore_memory(self, tags: Sequence[str] = ("kv_cache", "weights")) -> None:
        """Takes the memory again. The weights are then undefined: update them before sampling."""
        self._call("POST", "/resume_memory_occupation", {"tags": list(tags)})

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        """One blocking call.

        Raises:
            ServerError: The server refused or failed.
            ServerUnreachableError: It did not answer.
        """
        limit = self.control_timeout_s if timeout_s is None else timeout_s
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with _OPENER.open(request, timeout=limit) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise _refused(self.url, path, error.code, error.read()) from error
        except TimeoutError as error:
            raise ServerUnreachableError(f"{self.url} did not answer {path} within {limit:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachableError(f"{self.url} cannot be reached: {_reason(error)}") from error
        try:
            answer_body = json.loads(content) if content else None
        except ValueError:
            return None  # some calls answer with a sentence
        if isinstance(answer_body, dict) and answer_body.get("success") is False:
            raise _refused(self.url, path, 200, content)
        return answer_body


@dataclass(frozen=True, slots=True)
class _Connections:
    """Of one event loop, and what closes them."""

    http: aiohttp.ClientSession
    lifetime: AsyncGenerator[None]


def _refused(url: str, path: str, status: int, body: bytes) -> ServerError:
    text = body.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        pass
    else:
        if isinstance(answer, dict):
            inner = answer.get("error", answer)
            text = str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    error = ServerError(f"{url}{path} answered {status}: {text[:_MESSAGE_LENGTH] or 'nothing'}")
    error.status = status
    return error


def _reason(error: BaseException) -> str:
    """What a connection error says; the reason inside where the outer one says nothing."""
    inner = getattr(error, "reason", None) or error
    return str(inner) or type(inner).__name__
