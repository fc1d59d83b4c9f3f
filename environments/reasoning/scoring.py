"""Scores of a data set's own scorer, bounded in time and mended where it takes anything for right."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

SCORING_S = 10.0
"""Seconds that scoring one answer with SymPy may take; one that takes longer scores 0."""
_STOPPING_S = 2.0
_TOLERANCE = 0.02


class _TooLong(BaseException):
    """Raised in a scoring thread whose time is over."""


def mended(dataset: str, answer: str, entry: Mapping[str, Any], score: float) -> float:
    """A score without the faults of the package's scorers.

    game_of_life_halting takes any text for right, since it compares truth values of strings. coin_flip gives the full
    score to anything its answer begins with ("0" for "0.03125"), and to 0 for a small probability. A score that is
    not finite is 0.

    Args:
        dataset: Name of the data set.
        answer: The answer.
        entry: The task.
        score: What the data set's scorer said.

    Returns:
        A number from 0 to 1.
    """
    if not math.isfinite(score):
        return 0.0
    oracle = str(entry.get("answer"))
    if dataset == "game_of_life_halting":
        return float(answer.lower() == oracle.lower())
    if dataset == "coin_flip" and score >= 1 and not _is_near(answer, oracle):
        return 0.0
    return min(max(score, 0.0), 1.0)


def _is_near(answer: str, oracle: str) -> bool:
    """Whether an answer is a probability up to rounding, 2 % of it."""
    try:
        given, right = (float(Fraction(text.replace(",", ""))) for text in (answer, oracle))
    except (ValueError, ZeroDivisionError, OverflowError):
        return False
    return abs(given - right) <= _TOLERANCE * abs(right)


def within(limit_s: float, function: Callable[[], float]) -> float:
    """What a function returns, or 0 where it raises or takes too long.

    It runs in a thread of its own, in which an exception is raised when the time is over: that ends code in Python, as
    SymPy is, at its next instruction. Should it not, the thread is left behind; it is a daemon.

    Args:
        limit_s: Seconds it may take.
        function: What to run.
    """
    returned: list[float] = []

    def work() -> None:
        try:
            returned.append(function())
        except BaseException:  # whatever the policy wrote that the package did not expect, or the end of its time
            returned.append(0.0)

    thread = threading.Thread(target=work, name="envgym-scoring", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not thread.is_alive():
        return returned[0]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TooLong))
    thread.join(_STOPPING_S)
    return 0.0
