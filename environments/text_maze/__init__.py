"""`envgym/TextMaze-v0`."""

from envgym.environments.text_maze.environment import TextMaze

__all__ = ["TextMaze"]
