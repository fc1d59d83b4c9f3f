"""A single-player game of TextArena."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from envgym import Step, TextEnv, TruncationReason
from envgym.environments.text_arena.package import drawing_from, making, new_game, registry
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

REDRAWS = 50
"""Games tried before it is an error that none can be played."""
_LIMIT = re.compile(r"\b(turn|move) limit|used all|taken \d+ turns", re.IGNORECASE)


class TextArena(TextEnv):
    """One of TextArena's games. The first observation explains it; a message is one move.

    The move is what stands in the last pair of square brackets of the message, and the whole message where there are
    none; characters beyond ASCII and beyond the hundredth are lost. A move the game does not accept may be repeated
    once (`action_error` says what was wrong), the second in a row ends the game: so are its rules.

    The game pays at its end only. Reward component: "solved", what it pays for success; "partial", what it pays for a
    failure or at its turn limit; "invalid", what it pays when it is ended by invalid moves. Success, failure and
    invalid moves terminate. The turn limit of a game terminates it where its text announces the limit
    (`announces_limit`), and truncates it (`max_turns`) where the player cannot know of it.

    Args:
        variant: Ending of the package's id after "-v0", for example "-hardcore"; "" is the game as it is.

    Raises:
        MissingDependencyError: textarena is not installed.
        ValueError: The game has no such variant.

    Class attributes:
        game: Name of the game in the package, without its version.
        settings: Arguments of its constructor in place of the registered ones.
        announces_limit: Whether its turn limit is part of what the player is told.
        reports_success: Whether there is such a thing as success.
        examples: Moves for the action space.
    """

    system_prompt = "You play a game. Put your move between square brackets, as the game explains."
    game: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    announces_limit: ClassVar[bool] = False
    reports_success: ClassVar[bool | None] = True
    examples: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, variant: str = "") -> None:
        prefix = f"{self.game}-v0"
        known = [name.removeprefix(prefix) for name in registry() if name == prefix or name.startswith(f"{prefix}-")]
        variants = [name for name in known if not name.endswith(("-raw", "-train"))]
        if variant not in variants:
            raise ValueError(f"variants of {self.game} are {', '.join(map(repr, variants))}, got {variant!r}")
        self.variant = variant
        self.action_space = TextSpace(self.examples)
        self._native: Any = None
        self._random = random.Random(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a game.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The rules and the first position, and info.
        """
        super().reset(seed=seed)
        for _ in range(REDRAWS):
            drawn = int(self.np_random.integers(2**31))
            self._random = random.Random(drawn)
            with making, drawing_from(self._random):
                try:
                    self._native = new_game(f"{self.game}-v0{self.variant}", dict(self.settings))
                    self.prepare()
                    self._native.reset(num_players=1, seed=drawn)
                except (ZeroDivisionError, RuntimeError):  # some games cannot be drawn from every seed
                    continue
            _straighten(self._native.state)
            if self.is_playable():
                return self._observe(), self._info()
        raise AssertionError(f"no game of {self.game} could be drawn in {REDRAWS} tries")

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Makes a move."""
        move = self.read_move(action)
        state = self._native.state
        if error := self.refusal(move):
            state.set_invalid_move(reason=error, reward=0.0)
            state.step()
        else:
            with drawing_from(self._random):
                self._native.step(move)
        told = state.game_info[0]
        if not state.done:
            error = "invalid move" if state.error_count else None
            return Step.running(self._observe() or "The game goes on.", 0.0, action_error=error, **self._info())
        reason = str(told.get("reason") or "the game is over")
        text = f"{self._observe()}\n{reason}".strip()
        reward = self.payment(float(state.rewards[0]))
        if told["invalid_move"]:
            return Step.terminal(text, {"invalid": reward}, success=self._success(False), action_error=reason)
        at_limit = bool(_LIMIT.search(reason))
        if at_limit and not self.announces_limit:
            success = self._success(False)
            return Step.truncation(text, {"partial": reward}, reason=TruncationReason.MAX_TURNS, success=success)
        solved = reward >= 1 and not at_limit
        name = "solved" if solved and self.reports_success else "partial"
        return Step.terminal(text, {name: reward}, success=self._success(solved))

    @property
    def native(self) -> Any:
        """The package's game; None before the first reset."""
        return self._native

    def prepare(self) -> None:
        """What has to be done to a game before it is drawn."""

    def is_playable(self) -> bool:
        """Whether the game just drawn makes sense; another is drawn where it does not."""
        return not self._native.state.done

    def refusal(self, move: str) -> str | None:
        """What is wrong with a move that the game would accept by mistake; None where it may decide itself."""
        return None

    def payment(self, reward: float) -> float:
        """What the game's last reward is worth here."""
        return reward

    def read_move(self, action: str) -> str:
        """The move in a message, in square brackets."""
        end = action.rfind("]")
        start = action.rfind("[", 0, end) if end > 0 else -1
        inner = action[start + 1 : end] if start >= 0 else action.strip().strip("[]")
        return f"[{inner[:100].encode('ascii', 'replace').decode().strip()}]"

    def _observe(self) -> str:
        _, messages = self._native.get_observation()
        kinds = ((str(message).strip(), getattr(kind, "name", "PLAYER_ACTION")) for _, message, kind in messages)
        return "\n".join(message for message, kind in kinds if message and kind != "PLAYER_ACTION")

    def _info(self) -> dict[str, Any]:
        return {"success": False} if self.reports_success else {}

    def _success(self, solved: bool) -> bool | None:
        return solved if self.reports_success else None

    def solver(self) -> Player | None:
        """A player that reads the hidden state of the game; None where that does not decide it."""
        from envgym.environments.text_arena.players import Insider
        from envgym.environments.text_arena.solvers import PLANS

        return Insider(self) if self.game in PLANS else None

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that makes the solver's move in a third of its turns, and any move in the others."""
        from envgym.environments.text_arena.players import Clumsy

        return Clumsy(self, rng)


def _straighten(state: Any) -> None:
    """Makes a state's `set_invalid_move(reason, reward)` take its arguments in either order, as games give them."""
    set_invalid_move = state.set_invalid_move

    def in_order(first: Any = None, second: Any = -1.0, **named: Any) -> None:
        reason, reward = (first, second) if isinstance(first, str) or first is None else (second, first)
        set_invalid_move(**{"reason": reason, "reward": reward, **named})

    state.set_invalid_move = in_order
