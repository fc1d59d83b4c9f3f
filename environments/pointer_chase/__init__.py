"""`envgym/PointerChase-v0`."""

from envgym.environments.pointer_chase.environment import PointerChase

__all__ = ["PointerChase"]
