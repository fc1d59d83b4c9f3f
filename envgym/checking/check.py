"""`check_env`: every check of an environment, in one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gymnasium.envs.registration import EnvSpec

from envgym.checking import contract, declarations, determinism, hostile, residue
from envgym.checking.report import CheckFailure, CheckReport
from envgym.checking.subject import Subject
from envgym.env import TextEnv

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
    "residue": residue.residue,
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
