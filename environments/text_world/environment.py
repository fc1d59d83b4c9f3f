"""A generated text adventure: find out where things are, and do what the quest asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.environments.text_world.games import LEVELS, World, game_file, package, start
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

VERBS = (
    *("close", "cook", "drink", "drop", "eat", "examine", "get", "go", "insert", "inventory", "lock", "look", "open"),
    *("prepare", "put", "take", "unlock"),
)
SHORTHANDS = ("n", "s", "e", "w", "north", "south", "east", "west", "i", "l", "x")
_COMMAND = re.compile(r"[a-z][a-z0-9' -]{0,99}", re.IGNORECASE)
_STATUS_LINE = re.compile(r"\n>[^\n]*\s*\Z")
_RESTART = re.compile(r"\s*Would you like to RESTART.*\Z", re.DOTALL)


class TextWorld(TextEnv):
    """A game made by TextWorld and played in its Z-machine: rooms, doors, keys, containers, food, and a quest.

    The game is drawn from the seed. The quest opens the first observation; a message is one command. Reward components:
    "score", the points of the game divided by all it has, and "progress", a share for a command that leads towards the
    end of the quest and its negative for one that leads away. Winning terminates with success, making the quest
    impossible terminates without. A message that is no command of the game is "malformed" -0.05 and costs a turn.

    Args:
        level: 1 to 5: size of the world and length of the quest, see `games.LEVELS`.
        rooms, objects, quest_length: Each takes the place of the level's; 1 to 30, 0 to 60, 1 to 30.
        games: Draw from that many games only, so that they can be learned, and are made once; None: any game.
        progress: Reward of a command on the way to the goal, >= 0; 0 leaves the points only.
        show_inventory: Whether every observation ends with what is carried.
        show_commands: Whether every observation ends with the commands that do something.

    Raises:
        MissingDependencyError: textworld is not installed.
        ValueError: An argument is out of its range.
    """

    system_prompt = (
        "You play a text adventure. Answer with one command, for example: look, inventory, go east, open door, "
        "take key from chest, unlock chest with key, put apple on table."
    )
    max_turns = 50

    def __init__(
        self,
        *,
        level: int = 2,
        rooms: int | None = None,
        objects: int | None = None,
        quest_length: int | None = None,
        games: int | None = None,
        progress: float = 0.05,
        show_inventory: bool = False,
        show_commands: bool = False,
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, got {level}")
        base = LEVELS[level]
        self.world = World(
            _within("rooms", base.rooms if rooms is None else rooms, 1, 30),
            _within("objects", base.objects if objects is None else objects, 0, 60),
            _within("quest_length", base.quest_length if quest_length is None else quest_length, 1, 30),
        )
        if games is not None and games < 1:
            raise ValueError(f"games must be at least 1, got {games}")
        if not progress >= 0:
            raise ValueError(f"progress must not be negative, got {progress}")
        package()
        self.games = games
        self.progress = progress
        self.show_inventory = show_inventory
        self.show_commands = show_commands
        self.max_turns = max(50, 8 * self.world.quest_length)  # type: ignore[misc]
        self.action_space = TextSpace(["look", "inventory", "go north", "go south", "go east", "go west"])
        self._game: Any = None
        self._state: Any = None
        self._score = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a game, makes it unless it has been made before, and starts it.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The quest and the first room, and info.
        """
        super().reset(seed=seed)
        self.close()
        path = game_file(self.world, int(self.np_random.integers(self.games or 2**31)))
        self._game = start(
            path,
            admissible_commands=True,
            entities=True,
            inventory=True,
            won=True,
            lost=True,
            score=True,
            max_score=True,
            objective=True,
            policy_commands=True,
            intermediate_reward=True,
        )
        self._state = self._game.reset()
        self._score = 0
        text, objective = str(self._state.feedback), str(self._state.objective)
        opening = text.find(objective)  # a banner stands before it
        return self._observe(text[opening:] if objective and opening >= 0 else text), self._info()

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Gives the game a command."""
        command = " ".join(action.split()) if len(action) <= 200 else ""
        if (error := _refusal(command)) and not self._is_reply(command):
            return Step.running(error, {"malformed": -0.05}, action_error=error, **self._info())
        self._state, _, _ = self._game.step(command)
        score, points = int(self._state.score or 0), int(self._state.max_score or 1)
        components = {"score": (score - self._score) / points}
        self._score = score
        if self.progress:
            components["progress"] = self.progress * float(self._state.intermediate_reward or 0)
        if self._state.won or self._state.lost:
            won = bool(self._state.won)
            return Step.terminal(_clean(self._state.feedback), components, success=won, score=score)
        return Step.running(self._observe(self._state.feedback), components, **self._info())

    def close(self) -> None:
        """Ends the Z-machine of the present game. The story files stay until the process ends."""
        if self._game is not None:
            self._game.close()
            self._game = None

    @property
    def next_commands(self) -> list[str]:
        """The rest of a way to win from here; empty where there is none."""
        return list(self._state.policy_commands or ())

    @property
    def commands(self) -> list[str]:
        """The commands that do something here."""
        return list(self._state.admissible_commands or ())

    def _is_reply(self, command: str) -> bool:
        """Whether the game has asked which thing was meant, and the command is the name of one."""
        names = {str(name).lower() for name in self._state.entities or ()}
        return "Which do you mean" in str(self._state.feedback) and command.lower().removeprefix("the ") in names

    def _observe(self, feedback: str) -> str:
        parts = [_clean(feedback)]
        if self.show_inventory:
            parts.append(_clean(self._state.inventory))
        if self.show_commands:
            parts.append(f"commands: {', '.join(self.commands)}")
        return "\n".join(parts)

    def _info(self) -> dict[str, Any]:
        return {"success": False, "score": self._score}

    def solver(self) -> Player:
        """A player that follows the game's own way to win, found anew from wherever it is."""
        from envgym.environments.text_world.players import Walker

        return Walker(self)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that knows the way, but strolls about in most turns."""
        from envgym.environments.text_world.players import Stroller

        return Stroller(self, rng)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value}")
    return value


def _refusal(command: str) -> str | None:
    """Why a command does not reach the game: not one plain command, or one that is about the program (save, quit)."""
    if not _COMMAND.fullmatch(command):
        return "expected one command in plain letters, at most 100 characters"
    words = command.lower().split()
    if words[0] not in VERBS and words[0] not in SHORTHANDS:
        return f"unknown verb; known are {', '.join(VERBS)}"
    if "then" in words:
        return "expected one command, not several"
    return None


def _clean(text: str | None) -> str:
    """The text of the game without its prompt, its status line, the question at its end and empty lines."""
    cut = _RESTART.sub("", _STATUS_LINE.sub("", str(text or "")))
    return "\n".join(line for line in (line.strip() for line in cut.split("\n")) if line) or "nothing happens"
