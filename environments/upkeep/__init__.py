"""`envgym/Upkeep-v0`."""

from envgym.environments.upkeep.environment import Upkeep

__all__ = ["Upkeep"]
