"""`envgym/FrozenLake-v0`, `envgym/Taxi-v0`, `envgym/CliffWalking-v0`, `envgym/Blackjack-v0`: Gymnasium's, as text."""

from envgym.environments.toy_text.blackjack import Blackjack
from envgym.environments.toy_text.cliff_walking import CliffWalking
from envgym.environments.toy_text.frozen_lake import FrozenLake
from envgym.environments.toy_text.taxi import Taxi

__all__ = ["Blackjack", "CliffWalking", "FrozenLake", "Taxi"]
