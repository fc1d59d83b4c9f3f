"""`envgym/ReasoningGym-v0`: the data sets of the reasoning-gym package."""

from envgym.environments.reasoning.environment import ReasoningGym

__all__ = ["ReasoningGym"]
