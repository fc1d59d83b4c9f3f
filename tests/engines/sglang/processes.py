"""Which processes of a session are alive."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def members(session: int) -> dict[int, str]:
    """Living processes of a session and their command lines; not those that have ended and nobody has waited for."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in ("Z", "X"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = command.strip()
        except (OSError, ValueError):
            continue
    return found


def server_of(session: int) -> int:
    """The server's own process: the supervisor's child, and the leader of its group."""
    (leader,) = {os.getpgid(pid) for pid in members(session)} - {session}
    return leader


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    """Whether a condition comes true within a time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
