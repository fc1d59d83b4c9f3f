"""`envgym/Calculator-v0`."""

from envgym.environments.calculator.environment import Calculator

__all__ = ["Calculator"]
