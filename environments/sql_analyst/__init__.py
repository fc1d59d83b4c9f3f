"""`envgym/SqlAnalyst-v0`."""

from envgym.environments.sql_analyst.environment import SqlAnalyst

__all__ = ["SqlAnalyst"]
