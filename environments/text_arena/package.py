"""The textarena package, imported on first use, with randomness of its own for every episode.

Its games draw from the module `random` and reseed it. Here that name is replaced, in the games' own modules, by a
stand-in that leads to the generator of the episode which the calling thread is playing, and to `random` itself where
none is. So the process-global state stays untouched, and episodes in different threads do not meet. `print` is
replaced by nothing.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from envgym.errors import MissingDependencyError

making = threading.RLock()
"""Held while a game is made and drawn: some keep their work in their module meanwhile."""


class _EpisodeRandom(threading.local):
    """Takes the place of the module `random`; each thread sees the generator of the episode it plays."""

    current: random.Random | None = None

    def __getattr__(self, name: str) -> Any:
        current = self.current
        return getattr(current if current is not None and hasattr(current, name) else random, name)


_random = _EpisodeRandom()


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """Within it, games called by this thread draw from that generator."""
    before, _random.current = _random.current, generator
    try:
        yield
    finally:
        _random.current = before


def registry() -> dict[str, Any]:
    """The package's registry of games.

    Raises:
        MissingDependencyError: textarena or something it needs is not installed.
    """
    with making:
        states = random.getstate(), np.random.get_state()
        try:
            from textarena.envs.registration import ENV_REGISTRY
        except ImportError as error:
            raise MissingDependencyError(
                f"the TextArena environments need the textarena package ({error}): pip install 'envgym[textarena]'"
            ) from error
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
    return ENV_REGISTRY


def new_game(id: str, settings: dict[str, Any]) -> Any:
    """A game of the package, without its wrappers. Call it within `drawing_from`: some games draw when they are made.

    Args:
        id: A registered id.
        settings: Arguments of its constructor in place of the registered ones.
    """
    entry = registry()[id]
    module, _, name = entry.entry_point.partition(":")
    with making:
        made = getattr(importlib.import_module(module), name)
        for found, loaded in list(sys.modules.items()):
            if found.startswith("textarena.") and getattr(loaded, "random", None) is random:
                loaded.random = _random  # type: ignore[attr-defined]
            if found.startswith("textarena.envs.") and "print" not in vars(loaded):
                loaded.print = _no_print  # type: ignore[attr-defined]
        if sokoban := sys.modules.get("textarena.envs.Sokoban.utils"):
            sokoban.set = _Positions  # type: ignore[attr-defined]
    return made(**{**entry.kwargs, **settings})


class _Positions(set[Any]):
    """The positions a search for a Sokoban room has seen. The search ends at 300,000; this counts each for 60."""

    def __len__(self) -> int:
        return 60 * super().__len__()


def _no_print(*values: Any, **options: Any) -> None:
    """Takes the place of `print`."""
