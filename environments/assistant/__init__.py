"""`envgym/Assistant-v0`."""

from envgym.environments.assistant.environment import Assistant

__all__ = ["Assistant"]
