"""Tracebacks no longer than what they tell: a user's mistake and an interruption end at the user's own line."""

from __future__ import annotations

import logging

from envgym import errors

SAID = (
    errors.CheckpointError,
    errors.CollectionError,
    errors.MissingDependencyError,
    errors.ModelError,
    errors.ServerError,
    errors.StorageError,
    errors.UnknownIdError,
    errors.UnplayableError,
    errors.WeightSyncError,
)
"""Errors whose message says all there is to know."""

_log = logging.getLogger(__name__)


def shortened(error: BaseException) -> BaseException:
    """The error without the frames it went through and without those of its causes; they go to the log, level debug."""
    _log.debug("where it was raised", exc_info=error)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link.__suppress_context__ = True
        link = link.__cause__
    return error


def raised_by_envgym(error: BaseException) -> bool:
    """Whether an error was raised by this library's own code, and not by an environment or by what it calls."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.startswith("envgym.") and not module.startswith(("envgym.environments.", "envgym.agents."))
