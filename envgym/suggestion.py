"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
