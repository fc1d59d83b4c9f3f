"""Errors that envgym raises for anything but the caller's own input.

A mistake in what the caller passed is a `ValueError` (errors that are both say so). A policy's mistakes are
observations and a limit reached is a truncation: neither is an exception.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterable
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
