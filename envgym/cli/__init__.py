"""The `envgym` command."""

from envgym.cli.command import main

__all__ = ["main"]
