"""Text adventures made by TextWorld, kept as files for the life of the process."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envgym.errors import MissingDependencyError

REDRAWS = 50
"""Games tried before it is an error that none can be won."""

_lock = threading.RLock()
_folder: tempfile.TemporaryDirectory[str] | None = None
_owner = 0


@dataclass(frozen=True, slots=True)
class World:
    """Size of a game.

    Attributes:
        rooms: Number of rooms.
        objects: Number of objects; more where the quest needs them.
        quest_length: Number of commands of the quest, at most.
    """

    rooms: int
    objects: int
    quest_length: int


LEVELS = {1: World(1, 4, 2), 2: World(3, 6, 3), 3: World(5, 10, 5), 4: World(8, 14, 8), 5: World(12, 20, 12)}
"""Worlds from easy to hard."""


class _Unwarned:
    """Takes the place of the module `warnings`."""

    @staticmethod
    def warn(*args: Any, **kwargs: Any) -> None:
        """Says nothing."""


def package() -> Any:
    """The textworld package, imported without a trace in the process-global random state.

    Raises:
        MissingDependencyError: textworld or something it needs is not installed.
    """
    with _lock:
        states = random.getstate(), np.random.get_state()
        try:
            import jericho.jericho
            import textworld

            jericho.jericho.warnings = _Unwarned  # it warns of every game that is not one of its own
        except ImportError as error:
            raise MissingDependencyError(
                f"envgym/TextWorld-v0 needs the textworld package ({error}): pip install 'envgym[textworld]'"
            ) from error
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
    return textworld


def game_file(world: World, seed: int) -> Path:
    """The story file of the game of that size and seed; made when first asked for, which takes a second or more.

    Every game is won once by its own walkthrough before it is handed out. Where that fails, because two things in a
    room go by the same name, or TextWorld finds no quest, the game of the next seed takes its place. The folder of the
    games is removed when the process ends.
    """
    global _folder, _owner
    package()
    with _lock:
        if _folder is None or _owner != os.getpid():  # a forked child makes its own
            _folder, _owner = tempfile.TemporaryDirectory(prefix="envgym-textworld-"), os.getpid()
        path = Path(_folder.name) / f"{world.rooms}-{world.objects}-{world.quest_length}-{seed}.z8"
        for attempt in range(REDRAWS):
            if path.exists():
                break
            _make(world, (seed + attempt) % 2**31, path)
        assert path.exists(), f"no game of {world} can be won in {REDRAWS} draws from seed {seed}"
    return path


def start(path: Path, **wanted: bool) -> Any:
    """A Z-machine with that game.

    Args:
        path: The story file.
        wanted: What its states hold beside the text, by the names of `textworld.EnvInfos`.
    """
    textworld = package()
    game = textworld.start(str(path), textworld.EnvInfos(**wanted))
    game.seed(1)
    return game


def _make(world: World, seed: int, path: Path) -> None:
    """Writes the game if it can be won."""
    textworld = package()
    from textworld.generator import chaining, vtypes

    options = textworld.GameOptions()
    options.seeds = seed
    options.nb_rooms, options.nb_objects = world.rooms, world.objects
    options.quest_length = world.quest_length
    options.grammar.include_adj = True
    options.path = str(path)
    try:
        game = textworld.generator.make_game(options)
        textworld.generator.compile_game(game, options)
    except (chaining.QuestGenerationError, vtypes.NotEnoughNounsError):
        return
    machine = start(path, won=True)
    state = machine.reset()
    for command in game.walkthrough:
        state, _, _ = machine.step(command)
    machine.close()
    if not state.won:
        for made in (path, path.with_suffix(".json"), path.with_suffix(".ni")):
            made.unlink(missing_ok=True)
