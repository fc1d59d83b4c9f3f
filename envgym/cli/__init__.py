"""The `envgym` command."""

from envgym.cli.main import main

__all__ = ["main"]
