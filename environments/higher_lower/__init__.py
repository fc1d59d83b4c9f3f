"""`envgym/HigherLower-v0`."""

from envgym.environments.higher_lower.environment import HigherLower

__all__ = ["HigherLower"]
