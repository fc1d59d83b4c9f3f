"""`check_env`: every check of an environment, in one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec

from envgym.checking import contract, declarations, determinism, hostile
from envgym.checking.subject import Subject
from envgym.env import TextEnv
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


CHECKS: dict[str, Callable[[Subject], Iterator[str]]] = {
    "gymnasium": contract.gymnasium_contract,
    "seeding": determinism.seeding,
    "global_random_state": determinism.global_random_state,
    "leak_between_episodes": determinism.leak_between_episodes,
    "leak_between_instances": determinism.leak_between_instances,
    "episode_order": determinism.episode_order,
    "close_twice": contract.close_twice,
    "hostile_actions": hostile.hostile_actions,
    "injection": hostile.injection,
    "rewards_finite": contract.rewards_finite,
    "reward_components": contract.reward_components,
    "one_ending": contract.one_ending,
    "truncation_reason": contract.truncation_reason,
    "observations": contract.observations,
    "info_json": contract.info_json,
    "info_reproducible": determinism.info_reproducible,
    "tool_schemas": declarations.tool_schemas,
    "solver": declarations.solver,
    "residue": determinism.residue,
}
"""The checks by name, in the order they run. Each yields one message for everything it finds."""


def check_env(env: str | EnvSpec | TextEnv | Callable[[], Any]) -> CheckReport:
    """Checks an environment and reports everything that is wrong with it, not only the first thing.

    Nothing is raised for a failed check: `report.ok`, `str(report)` and `report.raise_if_failed()` say how it went.
    Checks that other failures prevent from running are reported with the exception that stopped them. Takes about a
    second for a fast environment, and at most five more for every action that hangs.

    Args:
        env: Id or `EnvSpec` of a registered environment, a class or factory, or an instance. Prefer the first two: an
            instance is copied for each use, which hides state its copies no longer share. It is itself not touched.

    Returns:
        The report.

    Raises:
        UnknownIdError: No environment is registered under that id.
        ValueError: It is no `TextEnv`, or an instance cannot be copied.
    """
    subject = Subject(env)
    failures: list[CheckFailure] = []
    for name, check in CHECKS.items():
        try:
            failures.extend(CheckFailure(name, message) for message in check(subject))
        except Exception as error:
            failures.append(CheckFailure(name, f"could not be completed, {type(error).__name__}: {str(error)[:200]}"))
        subject.close()
    return CheckReport(subject.name, tuple(CHECKS), tuple(failures))
