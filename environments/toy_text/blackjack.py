"""Draw cards to 21, and no further."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envgym import Step
from envgym.environments.toy_text.environment import ToyText

if TYPE_CHECKING:
    from envgym.agent import Player

OUTCOMES = {1: "won", 0: "draw", -1: "lost"}


class Blackjack(ToyText):
    """Gymnasium's Blackjack with the rules of Sutton and Barto: hit or stick against a dealer who draws to 17.

    Reward component: "outcome" 1, 0 or -1 for a hand won, drawn or lost. The hand terminates by a bust or by `stick`;
    `info["outcome"]` says how. `success` is not reported: the cards decide most hands, the best play wins 43 % of them.
    Gymnasium registers no limit; here 32 turns cut an episode, which only malformed messages reach.
    """

    system_prompt = (
        "Blackjack: come closer to 21 than the dealer, who draws to 17. Above 21 you lose. Answer: stick or hit."
    )
    max_turns = 32
    reports_success = False
    words = ("stick", "hit")
    running_info = {}  # noqa: RUF012 - a ClassVar of the base class

    def _make_native(self) -> Any:
        from gymnasium.envs.toy_text.blackjack import BlackjackEnv

        return BlackjackEnv(sab=True)

    @property
    def state(self) -> tuple[int, int, int]:
        """Sum of the player's hand, the dealer's open card (1 is an ace), whether an ace counts 11."""
        total, dealer, ace = self._native._get_obs()
        return int(total), int(dealer), int(ace)

    def _observe(self) -> str:
        total, dealer, ace = self.state
        note = ", ace counts 11" if ace else ""
        legal = ", ".join(self.words)
        return f"your cards {_cards(self._native.player)} = {total}{note}\ndealer shows {_card(dealer)}\nlegal: {legal}"

    def _components(self, reward: float, terminated: bool) -> dict[str, float]:
        return {"outcome": reward}

    def _terminal(self, reward: float, components: Mapping[str, float]) -> Step:
        outcome = OUTCOMES[int(reward)]
        hands = f"your cards {_cards(self._native.player)}\ndealer's cards {_cards(self._native.dealer)}"
        return Step.terminal(f"{hands}\n{outcome}", components, outcome=outcome)

    def solver(self) -> Player:
        """A player of the basic strategy for these rules."""
        from envgym.environments.toy_text.players import BasicStrategy

        return BasicStrategy(self)


def _card(value: int) -> str:
    return "A" if value == 1 else str(value)


def _cards(hand: list[int]) -> str:
    return " ".join(_card(card) for card in hand)
