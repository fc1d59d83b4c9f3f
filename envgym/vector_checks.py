"""The checks of the guard, done for many copies at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from envgym.errors import ContractError, RewardError
from envgym.vector_infos import frozen_info
from envgym.wrappers import REWARD_TOLERANCE, as_step, reward_problem, step_problem


def plain_infos(
    observations: Sequence[Any], rewards: Sequence[float], infos: Sequence[Any]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Copies of infos, as `frozen_infos` gives them, of the steps that keep the contract in the plainest of ways.

    Args:
        observations: One of each copy.
        rewards: Numbers.
        infos: One of each copy.

    Returns:
        The copies, and the indices of the steps that need a closer look, whose copies are missing.
    """
    frozen: list[dict[str, Any]] = []
    odd: list[int] = []
    texts = list(observations)
    fsum = math.fsum
    for info, reward in zip(infos, rewards, strict=True):  # one pass: several short ones take twice as long
        try:
            own = info.copy()
            own["reward_components"] = components = own["reward_components"].copy()
            total = fsum(components.values())
            role = own["role"]
            others = len(own) - 2
            fine = (total == reward or abs(total - reward) <= REWARD_TOLERANCE) and (role == "user" or role == "tool")
            if others:
                if "success" in own:
                    fine = fine and type(own["success"]) is bool
                    others -= 1
                if others and "action_error" in own:
                    texts.append(own["action_error"])
                    others -= 1
                if others:
                    own = frozen_info(own)
            if fine and type(own) is dict:
                texts.extend(components)
                frozen.append(own)
                continue
        except Exception:  # a key is missing, or something is not of its type
            pass
        odd.append(len(frozen))
        frozen.append({})
    try:
        text = "".join(texts)
        if math.isfinite(sum(rewards)) and (text.isascii() or text.encode() is not None):
            return frozen, odd
    except (TypeError, UnicodeEncodeError):  # no text, or half of a surrogate pair
        pass
    return frozen, list(range(len(frozen)))


def check_step(index: int, result: Any) -> None:
    """Raises where the step of one copy breaks the contract.

    Args:
        index: The copy, for the message.
        result: What its `step` returned.

    Raises:
        ContractError: The observation, a flag or `info` is not what it must be.
        RewardError: The reward is no finite number, or its components do not sum to it.
    """
    try:
        step = as_step(result)
    except ContractError as error:
        raise ContractError(f"copy {index}: {error}") from error
    if problem := step_problem(step):
        raise ContractError(f"copy {index}: {problem}")
    if problem := reward_problem(step):
        raise RewardError(f"copy {index}: {problem}")
