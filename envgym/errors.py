"""Errors that envgym raises for anything but the caller's own input, and writing that no error leaves half finished.

A mistake in what the caller passed is a `ValueError` (errors that are both say so). A policy's mistakes are
observations and a limit reached is a truncation: neither is an exception.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class EnvGymError(Exception):
    """Root of every error of this library."""


class UnknownIdError(EnvGymError, ValueError):
    """No environment or agent is registered under that id; the message suggests the nearest one."""


class EpisodeOrderError(EnvGymError):
    """`step` was called before `reset` or after the episode had ended."""


class UnplayableError(EnvGymError, ValueError):
    """An agent cannot play an environment at all, for example because the first prompt is longer than its context."""


class PromptLengthError(UnplayableError):
    """The first prompt of one episode does not fit an agent's context. Another seed may have a shorter one."""


class ContractError(EnvGymError):
    """What an environment's `reset` or `step` returned breaks the contract; the message says what to return."""


class RewardError(ContractError):
    """A reward is no finite number, or its components do not sum to it."""


class StepTimeoutError(EnvGymError):
    """A call into an environment took longer than its limit; the episode is recorded as failed."""


class CollectionError(EnvGymError):
    """Too many episodes failed for the collection to go on; the message names the commonest failure."""


class ModelError(EnvGymError, ValueError):
    """A model folder is missing, incomplete, or does not fit its tokenizer or the request."""


class CheckpointError(EnvGymError):
    """A checkpoint is missing, incomplete or belongs to another configuration."""


class StorageError(EnvGymError, OSError):
    """A file of a run could not be written; the message names it and says what is left and how to go on."""

    @classmethod
    def at(cls, path: Path, cause: str, advice: str, *, num_bytes: int | None = None) -> StorageError:
        """The error of a file or folder.

        Args:
            path: What could not be written.
            cause: What the system said.
            advice: What is left, and how to go on.
            num_bytes: How large it would have become, where that is known.
        """
        existing = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
        free = f"the disk has {shutil.disk_usage(existing).free / 1e6:.1f} MB free"
        needed = "" if num_bytes is None else f"it takes {num_bytes / 1e6:.1f} MB and "
        return cls(f"'{path}' could not be written ({cause}); {needed}{free}. {advice}")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder that is to be whole or not there at all.

    A reader, or a crash, sees what had the name before or all of the new. What an error leaves half written is removed.

    Args:
        path: What the file or folder is called once the block has ended.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    remove(partial)
    try:
        yield partial
        put_in_place(partial, path)
    except BaseException:
        remove(partial)
        raise


def put_in_place(partial: Path, path: Path) -> None:
    """Gives a written file or folder its name once it is on the disk; what had the name before is gone only then.

    Raises:
        OSError: It cannot be flushed or renamed.
    """
    for written in (*partial.rglob("*"), partial):
        handle = os.open(written, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    replaced = path.with_name(f".{path.name}.replaced")
    remove(replaced)
    if path.is_dir():  # a folder cannot be renamed over one that holds anything
        os.replace(path, replaced)
    os.replace(partial, path)
    remove(replaced)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all in it, or nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class WeightSyncError(EnvGymError):
    """Weights sent to a policy do not match what it holds (names, shapes), or arrived incompletely."""


class ServerError(EnvGymError):
    """A policy server could not be started, or refused or failed a request; the message holds what it said."""

    status: int | None = None
    """The HTTP status it answered with, where it answered."""


class ServerUnreachableError(ServerError):
    """A policy server did not answer: it is not running, or it hangs, or the network to it is broken."""


class MissingDependencyError(EnvGymError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


CUTOFF = 0.72
"""Least similarity of a suggestion: one or two letters of a short name may be wrong. A far-fetched one misleads."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a mistyped one; None where none is.

    Capitals do not count, and of environment ids neither do namespace and version, which nearly all ids share:
    `envgym/Foo-v0` is not like `envgym/Set-v0`.
    """
    cores: dict[str, str] = {}
    for candidate in known:
        cores.setdefault(_core(candidate), candidate)
    found = difflib.get_close_matches(_core(name), cores, n=1, cutoff=CUTOFF)
    if not found:
        return None
    same = [candidate for candidate in known if _core(candidate) == found[0]]
    return difflib.get_close_matches(name, same, n=1, cutoff=0.0)[0]


def _core(name: str) -> str:
    bare = name.rpartition("/")[2].lower()
    head, dash, version = bare.rpartition("-v")
    return head if dash and version.isdigit() else bare
