"""Whether a server answers."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


def is_healthy(url: str, timeout_s: float = 5.0) -> bool:
    """Whether the server at a URL says that it is healthy. No proxy is asked.

    Args:
        url: `http://host:port`.
        timeout_s: Most seconds to wait for its answer.
    """
    return _is_answered(url, "GET", "/health", timeout_s)


def freeze_objects(url: str, timeout_s: float = 30.0) -> None:
    """Tells a server that the objects it has by now are there to stay.

    Its garbage collector then passes them over. Otherwise it walks through all of them at every flush of the cache,
    which on a CPU takes a third of a second. SGLang asks itself for this once it has warmed up; without a warm-up it
    does so before it listens, in vain (0.5.23).
    """
    _is_answered(url, "POST", "/freeze_gc", timeout_s)


def _is_answered(url: str, method: str, path: str, timeout_s: float) -> bool:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, parts.path.rstrip("/") + path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
