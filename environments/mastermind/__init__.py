"""`envgym/Mastermind-v0`."""

from envgym.environments.mastermind.environment import Mastermind

__all__ = ["Mastermind"]
