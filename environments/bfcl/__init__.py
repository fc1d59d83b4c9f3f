"""`envgym/BfclMultiTurn-v0`."""

from envgym.environments.bfcl.environment import BfclMultiTurn

__all__ = ["BfclMultiTurn"]
