"""Fetch a passenger and bring them where they want to go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envgym import Step
from envgym.environments.toy_text.environment import ToyText

PLACES = ("R", "G", "Y", "B")


class Taxi(ToyText):
    """Gymnasium's Taxi: drive to the passenger, pick up, drive to the destination, drop off.

    Reward components: "step" -1 for an action, "illegal" -10 for a pickup or dropoff that cannot be, "delivery" 20.
    Delivering the passenger terminates with success.

    Args:
        is_rainy: Whether a move goes to one of the two sides with probability 0.2 (Gymnasium 1.2 or newer).
    """

    system_prompt = (
        "Drive the taxi @ to the passenger, pick up, drive to the destination, drop off. | is a wall. "
        "Answer: south, north, east, west, pickup or dropoff."
    )
    max_turns = 200
    words = ("south", "north", "east", "west", "pickup", "dropoff")
    malformed = -10.0

    def __init__(self, *, is_rainy: bool = False) -> None:
        super().__init__()
        self.is_rainy = is_rainy

    def _make_native(self) -> Any:
        from gymnasium.envs.toy_text.taxi import TaxiEnv

        if self._native is not None:
            return self._native  # its table of 3,000 transitions is the same for every episode
        return TaxiEnv(is_rainy=True) if self.is_rainy else TaxiEnv()

    def _observe(self) -> str:
        row, column, passenger, destination = self._native.decode(self.state)
        grid = [[cell.decode() for cell in line] for line in self._native.desc]
        grid[row + 1][2 * column + 1] = "@"
        drawn = "\n".join("".join(line) for line in grid)
        if passenger == destination:
            return f"{drawn}\npassenger delivered to {PLACES[destination]}"
        where = "in the taxi" if passenger == len(PLACES) else f"at {PLACES[passenger]}"
        mask = self._native.action_mask(self.state)
        legal = ", ".join(word for word, allowed in zip(self.words, mask, strict=True) if allowed)
        return (
            f"{drawn}\ntaxi row {row}, column {column}; passenger {where}; destination {PLACES[destination]}"
            f"\nlegal: {legal}"
        )

    def _components(self, reward: float, terminated: bool) -> dict[str, float]:
        return {"delivery" if terminated else "illegal" if reward < -1 else "step": reward}

    def _terminal(self, reward: float, components: Mapping[str, float]) -> Step:
        return Step.terminal(self._observe(), components, success=True)
