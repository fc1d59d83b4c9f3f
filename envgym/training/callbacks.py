"""Callbacks: what is called at the stations of a run, can keep state in its checkpoints, and may end it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envgym.config import TrainConfig
from envgym.evaluation.results import EnvironmentReport
from envgym.types import Trajectory

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunState:
    """Where a run stands, as every callback sees it on its rank.

    Attributes:
        config: The run's configuration.
        rank: This process; rank 0 writes the files.
        num_ranks: How many there are.
        iteration: The iteration under way, or the last one; 0 is warm start and first evaluation.
        metrics: Its metrics so far, the same on every rank. What a callback adds on rank 0 is logged with them.
        trajectories: Its episodes that this rank collected.
        reports: The newest evaluation by kind of play, "sampled" and "greedy", the same on every rank.
        stop_reason: Why the run ends before its last iteration, or None.
    """

    config: TrainConfig
    rank: int
    num_ranks: int
    iteration: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    trajectories: tuple[Trajectory, ...] = ()
    reports: dict[str, EnvironmentReport] = field(default_factory=dict)
    stop_reason: str | None = None

    @property
    def run_dir(self) -> Path:
        """The run folder, with the records of all earlier iterations."""
        return self.config.run_dir

    def stop(self, reason: str) -> None:
        """Ends the run with this iteration, on all ranks if one of them asks, as it would have ended after the last
        one: with an evaluation, a checkpoint and the exported model. `TrainResult.stopped` is the reason.

        Asked for in `on_start` or `on_checkpoint`, it ends the run before the next iteration.
        """
        if self.stop_reason is None:
            self.stop_reason = reason


class Callback:
    """Base of callbacks: override what is needed. Every rank calls its own, in the order given to `train`.

    An exception ends the run, which can be resumed. A callback that has `state_dict() -> dict` and
    `load_state_dict(dict)` is saved with every checkpoint and restored when the run is resumed. The state is written
    as JSON, and that of rank 0 is given to all ranks.
    """

    def on_start(self, state: RunState) -> None:
        """The run is set up: before the warm start or, of a resumed run, after its checkpoint was loaded."""

    def on_collect(self, state: RunState) -> None:
        """The episodes of an iteration are there, and nothing has been trained on them."""

    def on_update(self, state: RunState) -> None:
        """Actor and critic are updated, and what samples has the new weights. The metrics are not logged yet."""

    def on_evaluate(self, state: RunState) -> None:
        """The policy was evaluated, also before training (iteration 0) and at the end."""

    def on_checkpoint(self, state: RunState) -> None:
        """A checkpoint was written; the iteration is logged."""

    def on_end(self, state: RunState) -> None:
        """The run has come to its end and the model is exported. An error or interruption does not come here."""


def check_extensions(callbacks: Sequence[object], loggers: Sequence[object]) -> None:
    """Refuses what is no callback or logger.

    Raises:
        ValueError: For example a class where an instance is expected.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks takes instances of envgym.training.Callback, not {callback!r}")
    for logger in loggers:
        if isinstance(logger, type) or not callable(getattr(logger, "log", None)):
            raise ValueError(f"loggers takes objects with a method log(iteration, metrics), not {logger!r}")


def state_dicts(extensions: Sequence[Any]) -> dict[str, Any]:
    """The states of those callbacks and loggers that have one, for a checkpoint.

    Raises:
        ValueError: One cannot be written as JSON.
    """
    states = {name: each.state_dict() for name, each in _stateful(extensions).items()}
    for name, state in states.items():
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"state_dict() of {name} cannot be written as JSON: {error}") from error
    return states


def load_state_dicts(extensions: Sequence[Any], states: Mapping[str, Any], *, warn: bool) -> None:
    """Gives callbacks and loggers their states back, by class; those without one begin anew.

    Args:
        extensions: As they were when the states were taken.
        states: Of a checkpoint.
        warn: Say so where nobody takes a state.
    """
    takers = _stateful(extensions)
    for name, state in states.items():
        if name in takers:
            takers[name].load_state_dict(state)
        elif warn:
            _log.warning(
                "the run was saved with %s, which is not among its callbacks and loggers now; resume it with the "
                "script that started it",
                name,
            )


def _stateful(extensions: Sequence[Any]) -> dict[str, Any]:
    """Those with a state by the name of their class, numbered from the second of one class on."""
    named: dict[str, Any] = {}
    for each in {id(each): each for each in extensions}.values():  # one object may be a callback and a logger
        if hasattr(each, "state_dict"):
            name = f"{type(each).__module__}.{type(each).__qualname__}"
            same = sum(type(other) is type(each) for other in named.values())
            named[f"{name}#{same + 1}" if same else name] = each
    return named
