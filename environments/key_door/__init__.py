"""`envgym/KeyDoor-v0`."""

from envgym.environments.key_door.environment import KeyDoor

__all__ = ["KeyDoor"]
