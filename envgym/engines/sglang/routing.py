"""Routing: sessions, the servers they generate on, the servers in service, and what is counted of all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.request import encode_tokens
from envgym.types import Completion

_log = logging.getLogger(__name__)
_PROBE_DELAYS_S = (0.0, 5.0)
"""First and longest wait between two looks at a server that is out of service; in between each is twice the last."""


@dataclass(eq=False, slots=True)
class RoutedServer:
    """A server and its load.

    Attributes:
        client: How it is reached.
        problem: Why it is out of service; None while it is in.
        out_since: When it went out of service (monotonic seconds), or was made, if it has not been in.
        times_in_service: How often it was taken into service: a late complaint about an earlier time is known as such.
        num_sessions: Sessions that stay with it.
        num_running: Generations under way on it.
        num_requests: Generations it has been asked for.
        next_probe: When to look at it again (monotonic seconds), while it is out.
        probe_delay_s: How long the look after that waits.
        probing: Whether somebody is looking.
        pinned: The only name of weights that may sample on it, whatever their number; None for any of the right one.
    """

    client: SGLangClient
    problem: str | None = None
    out_since: float = field(default_factory=time.monotonic)
    times_in_service: int = 0
    num_sessions: int = 0
    num_running: int = 0
    num_requests: int = 0
    next_probe: float = 0.0
    probe_delay_s: float = 0.0
    probing: bool = False
    pinned: str | None = None

    @property
    def load(self) -> int:
        return self.num_sessions + self.num_running


@dataclass(eq=False, slots=True)
class ServedSession:
    """One episode, as `SGLangPolicy` knows it.

    Attributes:
        tokens: The tokens as last seen: the last prompt and its completion.
        encoded: They, as JSON.
        server: Where it generates; None until it first does.
        turn: The turn under way, and its event loop.
        closed: Whether the session has ended.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    encoded: str = ""
    server: RoutedServer | None = None
    turn: tuple[asyncio.Task[Completion], asyncio.AbstractEventLoop] | None = None
    closed: bool = False

    def extend(self, token_ids: list[int]) -> None:
        """Appends tokens."""
        if token_ids:
            self.encoded += ("," if self.tokens else "") + encode_tokens(token_ids)
            self.tokens += token_ids


@dataclass(frozen=True, slots=True)
class ServingStatistics:
    """What a served policy has done so far.

    Attributes:
        turns: Turns that were returned.
        tokens: Tokens of those turns.
        prompt_tokens: Tokens of their prompts.
        cached_prompt_tokens: How many of these a server had computed before.
        retries: Generations that were asked for again.
        aborted: Generations that were told to end early, because nobody waited for them any more.
        requests: Generations asked for, by server address.
        out_of_service: Why servers are out of service, by address.
    """

    turns: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    retries: int = 0
    aborted: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    out_of_service: dict[str, str] = field(default_factory=dict)

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that a server had in its prefix cache."""
        return self.cached_prompt_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class ServerPool:
    """Routes sessions to servers: a session goes to the least loaded server and stays there, where the cache holds its
    tokens, until that server goes out of service. All methods may be called from any thread.

    Args:
        clients: The servers.
        waiting: Why none is in service at first; None where all are.
    """

    def __init__(self, clients: Sequence[SGLangClient], *, waiting: str | None = None) -> None:
        if waiting is None:
            self.servers = tuple(RoutedServer(client, times_in_service=1) for client in clients)
        else:
            self.servers = tuple(RoutedServer(client, f"{client.url} {waiting}") for client in clients)
        self._lock = threading.Lock()

    def place(self, current: RoutedServer | None, *, elsewhere: bool = False) -> RoutedServer | None:
        """The server a session generates on from now on, counted as its load; None if no server is in service.

        Args:
            current: The one it was on.
            elsewhere: Leave it if there is another.
        """
        with self._lock:
            if current is not None:
                if current.problem is None and not elsewhere:
                    return current
                current.num_sessions -= 1
            in_service = [server for server in self.servers if server.problem is None]
            if elsewhere and len(in_service) > 1:
                in_service = [server for server in in_service if server is not current]
            if not in_service:
                return None
            chosen = min(in_service, key=lambda server: server.load)
            chosen.num_sessions += 1
            return chosen

    def leave(self, server: RoutedServer) -> None:
        """A session on that server has ended."""
        with self._lock:
            server.num_sessions -= 1

    @contextmanager
    def running(self, server: RoutedServer) -> Iterator[None]:
        """Counts a generation while it runs."""
        with self._lock:
            server.num_running += 1
            server.num_requests += 1
        try:
            yield
        finally:
            with self._lock:
                server.num_running -= 1

    def take_out(self, server: RoutedServer, problem: str, *, during: int | None = None) -> None:
        """Takes a server out of service. A complaint about an earlier time in service than the present one changes
        nothing."""
        with self._lock:
            if during is not None and during != server.times_in_service:
                return
            fresh = server.problem is None
            server.problem = problem
            if fresh:
                server.out_since = server.next_probe = time.monotonic()
                server.probe_delay_s = _PROBE_DELAYS_S[0]
        if fresh:
            _log.warning("Policy server taken out of service: %s", problem)

    def put_in(self, server: RoutedServer) -> None:
        """Takes a server into service."""
        with self._lock:
            if server.problem is None:
                return
            server.problem = None
            first = server.times_in_service == 0
            server.times_in_service += 1
        if not first:
            _log.warning("Policy server %s is back in service", server.client.url)

    def unserved_since(self) -> float:
        """When the last server went out of service (monotonic seconds), if none is in."""
        return max(server.out_since for server in self.servers)

    def due(self, *, at_once: bool = False) -> list[RoutedServer]:
        """Servers out of service that should be looked at now, each given to one caller, who calls `probed` after.

        Args:
            at_once: Also those that were looked at a moment ago.
        """
        now = math.inf if at_once else time.monotonic()
        with self._lock:
            found = [s for s in self.servers if s.problem is not None and not s.probing and s.next_probe <= now]
            for server in found:
                server.probing = True
        return found

    def probed(self, server: RoutedServer, _task: object = None) -> None:
        """Somebody has looked at the server."""
        with self._lock:
            server.probing = False
            server.probe_delay_s = min(max(2 * server.probe_delay_s, 0.1), _PROBE_DELAYS_S[1])
            server.next_probe = time.monotonic() + server.probe_delay_s

    def problems(self) -> str:
        """Why servers are out of service."""
        return "; ".join(server.problem for server in self.servers if server.problem is not None)
