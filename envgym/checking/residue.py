"""Check that a closed environment leaves nothing behind: no thread, no open file, no child process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from envgym.checking.subject import Subject, transcript

GRACE_S = 1.0
"""Time that threads and processes get to end after close."""


def residue(subject: Subject) -> Iterator[str]:
    """What was not there before the episode is gone after close."""
    actions = subject.actions(51)
    subject.close()
    gc.collect()
    before = _threads(), _open_files(), _children()
    env = subject.fresh()
    transcript(env, actions, seed=51)
    env.close()
    deadline = time.monotonic() + GRACE_S
    while True:
        gc.collect()
        left = [now - then for now, then in zip((_threads(), _open_files(), _children()), before, strict=True)]
        if not any(left) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for kind, names in zip(("threads", "open files", "child processes"), left, strict=True):
        if names:
            yield f"after close there are still {kind}: {', '.join(sorted(names))}; end them in close"


def _threads() -> set[str]:
    return {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()}


def _open_files() -> set[str]:
    """Open file descriptors with what they point to; empty where the system does not list them."""
    files: set[str] = set()
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            for name in os.listdir(folder):
                try:
                    target = os.readlink(f"{folder}/{name}") if folder.startswith("/proc") else ""
                    os.fstat(int(name))
                except OSError:
                    continue  # the descriptor of the listing itself
                files.add(f"{name} {target}")
            break
    return files


def _children() -> set[str]:
    """Live child processes of this process, by id."""
    if not Path("/proc/self/stat").exists():
        return {str(child.pid) for child in multiprocessing.active_children()}
    children: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            children.add(f"{stat.parent.name} {name.partition('(')[2]}")
    return children
