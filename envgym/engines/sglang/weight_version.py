"""What a server calls the weights it holds."""

from __future__ import annotations

UNKNOWN_VERSION = -1
"""Of weights that somebody else gave a server, or that it was started with."""


def version_name(version: int, lineage: str = "") -> str:
    """The name that a server is given for its weights.

    Args:
        version: Their number.
        lineage: Whose weights they are, so that those of another run with the same number are not taken for them.
    """
    return f"{lineage}:{version}" if lineage else str(version)


def parse_version(name: str | None, lineage: str = "") -> int:
    """The number in a server's name for its weights.

    Args:
        name: Such as "12", "a1b2:12", or "default", which servers call the weights they were started with.
        lineage: Whose weights are expected; any when empty.

    Returns:
        The number. Of a name without one: 0 where any weights are expected. `UNKNOWN_VERSION` for weights of another
        lineage than expected.
    """
    owner, _, number = (name or "").rpartition(":")
    if lineage and owner != lineage:
        return UNKNOWN_VERSION
    try:
        return int(number)
    except ValueError:
        return UNKNOWN_VERSION if lineage else 0
