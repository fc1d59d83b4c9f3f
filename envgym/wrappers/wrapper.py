"""What the wrappers share: text in, `Step` out, and arguments that the `EnvSpec` carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import RecordConstructorArgs

from envgym.env import Step
from envgym.errors import ContractError

STEP_FORM = "(observation, reward, terminated, truncated, info)"
"""What `step` returns, for messages."""


class TextWrapper(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Base class of the wrappers.

    Args:
        env: The environment.
        recorded: The constructor's other arguments. They become part of the `EnvSpec`, which survives `EnvSpec.to_json`
            where they are plain JSON values.
    """

    def __init__(self, env: gymnasium.Env[str, str], **recorded: Any) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **recorded)
        gymnasium.Wrapper.__init__(self, env)


def as_step(result: Any) -> Step:
    """The result of any Gymnasium `step` as a `Step`.

    Raises:
        ContractError: It is no tuple of five.
    """
    if isinstance(result, Step):
        return result
    if not isinstance(result, tuple) or len(result) != 5:
        raise ContractError(f"step returned {repr(result)[:200]} ({type(result).__name__}); return {STEP_FORM}")
    return Step(*result)


def as_function(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """A function given as itself or as `"module:name"`, the form that an `EnvSpec` can write as JSON.

    Raises:
        ValueError: It is neither, or there is no such function.
    """
    if callable(function):
        return function
    try:
        found: Any = load_env_creator(function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no function {function!r}: {error}") from error
    except ValueError:
        found = None
    if not callable(found):
        raise ValueError(f"expected a function or its name 'module:function', got {function!r}")
    return found
