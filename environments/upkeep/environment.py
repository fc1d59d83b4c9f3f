"""Keep a field in order for as long as anyone watches: the work that pays now runs down what pays later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np

    from envgym.agent import Player

MAX_SOIL, MAX_WEEDS = 9, 2
ACTIONS = ("crop", "rest", "weed")
WEAR = 0.35
"""Probability that cropping takes one from the soil."""
GROW = 0.6
"""Probability that a rest gives one back."""
SPROUT = 0.05
"""Probability that a turn without weeding adds one to the weeds."""


class Upkeep(TextEnv):
    """A field with soil 0-9 and weeds 0-2 that is cropped, rested or weeded, turn after turn, without an end.

    The observation is the whole state, for example `soil 7 weeds 1`, and a turn's action one word:

    - `crop` pays `soil / 9 * (1 - 0.3 * weeds)` (component "yield") and may take one from the soil;
    - `rest` pays nothing and may give one back to the soil;
    - `weed` pays nothing and removes all weeds.

    Without weeding, weeds may grow by one. Anything else is a turn without work ("malformed" -0.05). The start is
    uniform over all states, so that short episodes cover them.

    The task never terminates. Whoever sees only a few turns ahead crops at nearly any soil and lives on a poor field;
    it takes the value of what lies beyond the cut to rest at soil 7. `success` is not reported.
    """

    system_prompt = "Keep the field: crop, rest or weed."
    max_turns = 48
    reports_success = False

    def __init__(self) -> None:
        self.action_space = TextSpace(ACTIONS)
        self._soil = 0
        self._weeds = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws the state of the field.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The state as text, and info.
        """
        super().reset(seed=seed)
        self._soil = int(self.np_random.integers(MAX_SOIL + 1))
        self._weeds = int(self.np_random.integers(MAX_WEEDS + 1))
        return self._observe(), {}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Works the field for one turn."""
        work = action.strip()
        if work not in ACTIONS:
            self._sprout()
            return Step.running(self._observe(), {"malformed": -0.05}, action_error=f"expected {', '.join(ACTIONS)}")
        gain = crop_yield(self._soil, self._weeds) if work == "crop" else 0.0
        if work == "weed":
            self._weeds = 0
            return Step.running(self._observe(), {"yield": gain})
        if work == "crop" and self.np_random.random() < WEAR:
            self._soil = max(0, self._soil - 1)
        elif work == "rest" and self.np_random.random() < GROW:
            self._soil = min(MAX_SOIL, self._soil + 1)
        self._sprout()
        return Step.running(self._observe(), {"yield": gain})

    def _sprout(self) -> None:
        if self.np_random.random() < SPROUT:
            self._weeds = min(MAX_WEEDS, self._weeds + 1)

    def _observe(self) -> str:
        return f"soil {self._soil} weeds {self._weeds}"

    def solver(self) -> Player:
        """A player of the policy that is optimal for the endless task at discount 0.95."""
        from envgym.environments.upkeep.players import Planner

        return Planner()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that mostly crops or does anything, and sometimes what is right; about 0.24 reward a turn."""
        from envgym.environments.upkeep.players import Dabbler

        return Dabbler(rng)


def crop_yield(soil: int, weeds: int) -> float:
    """Reward of cropping a field in this state, between 0 and 1."""
    return soil / MAX_SOIL * (1 - 0.3 * weeds)
