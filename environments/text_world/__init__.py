"""`envgym/TextWorld-v0`: generated text adventures of the TextWorld package."""

from envgym.environments.text_world.environment import TextWorld

__all__ = ["TextWorld"]
