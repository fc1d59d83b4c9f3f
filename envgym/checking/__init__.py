"""Checks for authors of environments: `check_env`."""

from envgym.checking.check import CHECKS, CheckError, CheckFailure, CheckReport, check_env

__all__ = ["CHECKS", "CheckError", "CheckFailure", "CheckReport", "check_env"]
