"""Whether a server answers."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

from envgym.errors import ServerError


def is_healthy(url: str, timeout_s: float = 5.0) -> bool:
    """Whether the server at a URL says that it is healthy. No proxy is asked.

    Args:
        url: `http://host:port`.
        timeout_s: Most seconds to wait for its answer.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_healthy(url: str, timeout_s: float) -> None:
    """Waits for a server that somebody else started.

    Raises:
        ServerError: It is not healthy within the time.
    """
    deadline = time.monotonic() + timeout_s
    while not is_healthy(url):
        if time.monotonic() > deadline:
            raise ServerError(f"no healthy server answered at {url} within {timeout_s:.0f} s; is it running there?")
        time.sleep(0.2)
