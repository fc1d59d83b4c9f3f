"""Cross a frozen lake without falling into a hole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envgym import Step
from envgym.environments.toy_text.environment import ToyText, draw_map

MAPS = {"4x4": 100, "8x8": 200, "random": 100}
"""The maps by name, with Gymnasium's turn limit for that size."""


class FrozenLake(ToyText):
    """Gymnasium's FrozenLake: walk from S over F to G; H is a hole.

    Reward component: "goal" 1 for reaching G. Reaching G (success) and falling into a hole both terminate.

    Args:
        map_name: "4x4" or "8x8" (Gymnasium's maps), or "random": another 4x4 map in every episode.
        is_slippery: Whether a move goes to one of the two sides with probability 2/3. Off by default (Gymnasium: on),
            because on ice the best policy reaches the goal in 74 % of the episodes only.

    Raises:
        ValueError: There is no such map.
    """

    system_prompt = (
        "Walk on the frozen lake to G. S and F are safe, H is a hole, @ is you. Answer: left, down, right or up."
    )
    max_turns = MAPS["4x4"]
    words = ("left", "down", "right", "up")

    def __init__(self, *, map_name: str = "4x4", is_slippery: bool = False) -> None:
        super().__init__()
        if map_name not in MAPS:
            raise ValueError(f"map_name must be one of {', '.join(MAPS)}, got {map_name!r}")
        self.map_name = map_name
        self.is_slippery = is_slippery
        self.max_turns = MAPS[map_name]  # type: ignore[misc]

    def _make_native(self) -> Any:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

        if self.map_name != "random":
            return FrozenLakeEnv(map_name=self.map_name, is_slippery=self.is_slippery)
        desc = generate_random_map(size=4, seed=int(self.np_random.integers(2**31)))
        return FrozenLakeEnv(desc=desc, is_slippery=self.is_slippery)

    def _observe(self) -> str:
        rows = ["".join(cell.decode() for cell in row) for row in self._native.desc]
        row, column = divmod(self.state, self._native.ncol)
        tile = rows[row][column]
        if tile in "GH":
            return draw_map(rows, (row, column)) + (
                "\nyou reached the goal" if tile == "G" else "\nyou fell into a hole"
            )
        ice = "slippery" if self.is_slippery else "not slippery"
        legal = ", ".join(self.words)
        return f"{draw_map(rows, (row, column))}\nrow {row}, column {column}; {ice}\nlegal: {legal}"

    def _components(self, reward: float, terminated: bool) -> dict[str, float]:
        return {"goal": reward}

    def _terminal(self, reward: float, components: Mapping[str, float]) -> Step:
        return Step.terminal(self._observe(), components, success=reward > 0)
