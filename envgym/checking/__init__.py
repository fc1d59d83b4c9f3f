"""Checks for authors of environments: `check_env`."""

from envgym.checking.check import CHECKS, check_env
from envgym.checking.report import CheckError, CheckFailure, CheckReport

__all__ = ["CHECKS", "CheckError", "CheckFailure", "CheckReport", "check_env"]
