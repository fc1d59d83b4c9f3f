"""What an agent answered, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, get_args

from envgym.agent import Action
from envgym.types import Completion, FinishReason, VersionSpan

_NO_TOKENS = Completion(token_ids=(), logprobs=(), finish_reason="stop")
_FINISH_REASONS = get_args(FinishReason)


def as_action(reply: Any) -> Action:
    """An agent's answer as an `Action`.

    Args:
        reply: A string, or an `Action`.

    Raises:
        TypeError: It, or something in it, is of the wrong type.
        ValueError: A text that UTF-8 cannot encode, a log-probability that is not finite, or an unknown finish reason.
    """
    if isinstance(reply, str):
        return Action(_text(reply), (), _NO_TOKENS)
    if not isinstance(reply, Action):
        raise TypeError(f"an agent must answer with a string, got {type(reply).__name__}")
    if not isinstance(reply.text, str):
        raise TypeError(f"the text of an Action must be a string, got {type(reply.text).__name__}")
    if not isinstance(reply.completion, Completion):
        raise TypeError(f"the completion of an Action must be a Completion, got {type(reply.completion).__name__}")
    return Action(_text(reply.text), as_token_ids(reply.observation_ids, "observation_ids"), _checked(reply.completion))


def as_token_ids(ids: Any, what: str) -> tuple[int, ...]:
    """Token ids as a tuple.

    Raises:
        TypeError: They are no sequence of integers.
    """
    if not isinstance(ids, tuple | list):
        raise TypeError(f"{what} must be a tuple of integers, got {type(ids).__name__}")
    _check_all(ids, (int,), f"{what} must be integers")
    return tuple(ids)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"an agent's text must be encodable as UTF-8, but it holds {text[error.start]!r} at character "
            f"{error.start}; decode bytes with errors='replace'"
        ) from error
    return text


def _checked(completion: Completion) -> Completion:
    as_token_ids(completion.token_ids, "the token_ids of a Completion")
    _check_all(completion.logprobs, (float, int), "the logprobs of a Completion must be floats")
    if not all(map(math.isfinite, completion.logprobs)):
        raise ValueError("the logprobs of a Completion must be finite")
    if completion.finish_reason not in _FINISH_REASONS:
        raise ValueError(
            f"the finish_reason of a Completion must be one of {', '.join(_FINISH_REASONS)}, "
            f"got {completion.finish_reason!r}"
        )
    _check_all(completion.version_spans, (VersionSpan,), "the version_spans of a Completion must be VersionSpans")
    for ids in completion.support or ():
        _check_all(ids, (int,), "the support of a Completion must be integers")
    return completion


def _check_all(values: Iterable[Any], types: tuple[type, ...], requirement: str) -> None:
    for kind in set(map(type, values)):  # exactly of these types: what JSON writes, and no bool
        if kind not in types:
            raise TypeError(f"{requirement}, got {kind.__name__}")
