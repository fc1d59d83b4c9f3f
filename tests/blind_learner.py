"""A learner that takes a truncation for the end of the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from envgym.learner.batch import Batch
from envgym.learner.learner import Learner


@contextmanager
def zeroed_bootstrap() -> Iterator[None]:
    """While it lasts, learners value what follows a truncation at nothing, as if the episode had ended there."""
    score_values = Learner._score_values

    def score_and_zero(learner: Learner, batch: Batch) -> None:
        score_values(learner, batch)
        batch.bootstrap_value = batch.bootstrap_value.new_zeros(batch.bootstrap_value.shape)

    Learner._score_values = score_and_zero  # type: ignore[method-assign]
    try:
        yield
    finally:
        Learner._score_values = score_values  # type: ignore[method-assign]
