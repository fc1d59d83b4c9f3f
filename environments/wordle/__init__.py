"""`envgym/Wordle-v0`."""

from envgym.environments.wordle.environment import Wordle

__all__ = ["Wordle"]
