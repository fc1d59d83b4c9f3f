"""What `check_env` found."""

from __future__ import annotations

from dataclasses import dataclass

from envgym.errors import EnvGymError


class CheckError(EnvGymError):
    """An environment failed a check; the message is the report."""


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One thing that is wrong.

    Attributes:
        check: Name of the check.
        message: What was found, and what to do.
    """

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of every check.

    Attributes:
        environment: Name of the environment.
        checks: Names of the checks that ran.
        failures: Everything found, in the order of the checks. As a string, each message is one line.
    """

    environment: str
    checks: tuple[str, ...]
    failures: tuple[CheckFailure, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.failures

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Names of the checks that found something, each once."""
        return tuple(dict.fromkeys(failure.check for failure in self.failures))

    def raise_if_failed(self) -> None:
        """Raises a `CheckError` with the report unless nothing was found."""
        if not self.ok:
            raise CheckError(str(self))

    def __str__(self) -> str:
        passed = len(self.checks) - len(self.failed_checks)
        lines = [f"{self.environment}: {passed} of {len(self.checks)} checks passed"]
        # What was found again and again is one line: with the checks that found it, and how often where that is more.
        found: dict[str, list[str]] = {}
        for failure in self.failures:
            found.setdefault(failure.message, []).append(failure.check)
        for message, checks in found.items():
            names = list(dict.fromkeys(checks))
            times = f" ({len(checks)} times)" if len(checks) > len(names) else ""
            lines.append(f"  {', '.join(names)}: {message}{times}")
        return "\n".join(lines)
