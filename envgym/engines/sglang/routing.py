"""Which of several servers a session generates on, and which are in service."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from envgym.engines.sglang.client import SGLangClient

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
        stint: Counts its times in service, so that a late complaint about an earlier one is known as such.
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
    stint: int = 0
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


class ServerPool:
    """Routes sessions to servers: a session goes to the least loaded server and stays there, where the cache holds its
    tokens, until that server goes out of service. All methods may be called from any thread.

    Args:
        clients: The servers.
        waiting: Why none is in service at first; None where all are.
    """

    def __init__(self, clients: Sequence[SGLangClient], *, waiting: str | None = None) -> None:
        if waiting is None:
            self.servers = tuple(RoutedServer(client, stint=1) for client in clients)
        else:
            self.servers = tuple(RoutedServer(client, f"{client.url} {waiting}") for client in clients)
        self._lock = threading.Lock()

    def settle(self, current: RoutedServer | None, *, elsewhere: bool = False) -> RoutedServer | None:
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

    def take_out(self, server: RoutedServer, problem: str, *, stint: int | None = None) -> None:
        """Takes a server out of service. A complaint about an earlier stint than the present one changes nothing."""
        with self._lock:
            if stint is not None and stint != server.stint:
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
            first = server.stint == 0
            server.stint += 1
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

    def probed(self, server: RoutedServer) -> None:
        """Somebody has looked at the server."""
        with self._lock:
            server.probing = False
            server.probe_delay_s = min(max(2 * server.probe_delay_s, 0.1), _PROBE_DELAYS_S[1])
            server.next_probe = time.monotonic() + server.probe_delay_s

    def problems(self) -> str:
        """Why servers are out of service."""
        return "; ".join(server.problem for server in self.servers if server.problem is not None)
