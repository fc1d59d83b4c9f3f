"""`envgym/FileClerk-v0`."""

from envgym.environments.file_clerk.environment import FileClerk

__all__ = ["FileClerk"]
