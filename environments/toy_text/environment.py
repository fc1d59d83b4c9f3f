"""What the four ToyText environments share: words for actions, text for states, Gymnasium's own rules beneath."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from envgym import Step, TextEnv
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player


class ToyText(TextEnv):
    """One of Gymnasium's ToyText environments with text for its numbers.

    The native environment draws from this one's `np_random`, so that an episode is the one Gymnasium plays for the same
    seed and actions: states, rewards and terminations. A message is one of `words`, in any case; anything else leaves
    the state as it is and costs a turn and the penalty `malformed`.

    Class attributes:
        words: The actions, in the order of Gymnasium's numbers.
        malformed: Reward of a message that is no action; below that of any harmless action.
        running_info: Entries of `info` before the end.
    """

    words: ClassVar[tuple[str, ...]] = ()
    malformed: ClassVar[float] = -0.05
    running_info: ClassVar[Mapping[str, Any]] = {"success": False}

    def __init__(self) -> None:
        self.action_space = TextSpace(self.words)
        self._native: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The state as text, and info.
        """
        super().reset(seed=seed)
        self._native = self._make_native()
        self._native.np_random = self.np_random
        self._native.reset()
        return self._observe(), dict(self.running_info)

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Executes an action."""
        word = action.strip().lower() if len(action) < 100 else ""
        if word not in self.words:
            error = f"expected one of {', '.join(self.words)}"
            text = f"{error}\n{self._observe()}"
            return Step.running(text, {"malformed": self.malformed}, action_error=error, **self.running_info)
        _, reward, terminated, _, _ = self._native.step(self.words.index(word))
        components = self._components(float(reward), bool(terminated))
        if terminated:
            return self._terminal(float(reward), components)
        return Step.running(self._observe(), components, **self.running_info)

    @property
    def state(self) -> Any:
        """Gymnasium's own observation of the present state: a number, or the three of Blackjack."""
        return int(self._native.s)

    @property
    def native(self) -> Any:
        """Gymnasium's environment beneath; None before the first reset."""
        return self._native

    @abstractmethod
    def _make_native(self) -> Any:
        """The native environment of the next episode."""

    @abstractmethod
    def _observe(self) -> str:
        """The present state as text."""

    @abstractmethod
    def _components(self, reward: float, terminated: bool) -> dict[str, float]:
        """The native reward under the name of what it was paid for."""

    @abstractmethod
    def _terminal(self, reward: float, components: Mapping[str, float]) -> Step:
        """The last step of an episode."""

    def solver(self) -> Player:
        """A player of the policy that value iteration finds on Gymnasium's own transition table."""
        from envgym.environments.toy_text.players import Planner

        return Planner(self)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that does what is right in a third of the turns, and anything in the others."""
        from envgym.environments.toy_text.players import Clumsy

        return Clumsy(self, rng)


def draw_map(rows: Sequence[str], position: tuple[int, int]) -> str:
    """A map with `@` at a position (row, column) and blanks between the columns."""
    grid = [list(row) for row in rows]
    grid[position[0]][position[1]] = "@"
    return "\n".join(" ".join(row) for row in grid)
