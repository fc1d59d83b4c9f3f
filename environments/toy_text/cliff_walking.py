"""Walk along a cliff without stepping over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envgym import Step
from envgym.environments.toy_text.environment import ToyText, draw_map

ROWS = ("............", "............", "............", "SCCCCCCCCCCG")


class CliffWalking(ToyText):
    """Gymnasium's CliffWalking: from S to G over a grid of 4 rows and 12 columns; the cliff C throws back to S.

    Reward components: "step" -1 for a move, "cliff" -100 for a move over the cliff. Only reaching G terminates.
    Gymnasium registers no limit; here an episode is cut after 200 turns.

    Args:
        is_slippery: Whether a move goes to one of the two sides with probability 2/3.
    """

    system_prompt = "Walk from S to G; stepping on C throws you back to S. @ is you. Answer: up, right, down or left."
    max_turns = 200
    words = ("up", "right", "down", "left")
    malformed = -2.0

    def __init__(self, *, is_slippery: bool = False) -> None:
        super().__init__()
        self.is_slippery = is_slippery

    def _make_native(self) -> Any:
        from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

        return CliffWalkingEnv(is_slippery=self.is_slippery)

    def _observe(self) -> str:
        row, column = divmod(self.state, len(ROWS[0]))
        if ROWS[row][column] == "G":
            return f"{draw_map(ROWS, (row, column))}\nyou reached the goal"
        return f"{draw_map(ROWS, (row, column))}\nrow {row}, column {column}\nlegal: {', '.join(self.words)}"

    def _components(self, reward: float, terminated: bool) -> dict[str, float]:
        return {"cliff" if reward < -1 else "step": reward}

    def _terminal(self, reward: float, components: Mapping[str, float]) -> Step:
        return Step.terminal(self._observe(), components, success=True)
