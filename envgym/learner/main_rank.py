"""What only the main rank does, without leaving the others behind when it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from envgym.learner.sharding import is_main

T = TypeVar("T")


def on_main(action: Callable[[], T]) -> T | None:
    """Runs an action on the main rank while the others wait; a collective of all ranks.

    Returns:
        What the action returned, on the main rank; None on the others.

    Raises:
        Exception: Whatever the action raised, on every rank: a rank that went on alone would wait for the main one.
    """
    result, error = None, None
    if is_main():
        try:
            result = action()
        except Exception as failure:
            error = failure
    shared: list[Any] = [error]
    dist.broadcast_object_list(shared, src=0)
    if shared[0] is not None:
        raise shared[0]
    return result
