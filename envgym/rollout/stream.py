"""Episodes of coming iterations, played while the present one is trained on; and how old the weights were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from envgym.agent import Agent
from envgym.rollout.collector import Collection, Collector, EpisodeRequest
from envgym.rollout.threads import LoopThread
from envgym.types import Trajectory


class EpisodeStream:
    """Collection that overlaps with training, with bounded staleness.

    Iteration t trains weights of version t - 1. Its episodes start as soon as the sampling weights have version
    t - 1 - max_lag, so no token is sampled by weights that are more than `max_lag` versions behind those it trains;
    episodes that run while new weights arrive go on with them. Which episodes belong to an iteration is fixed before
    they are played, and the iteration waits for all of them: a batch of whatever finished first would be biased to
    short episodes.

    Args:
        collectors: One for each iteration that may be under way, that is max_lag + 1; each keeps its own environments.
        agent: What plays; its policy must be usable from several threads.
        requests: The episodes of an iteration.
        iterations: The iterations to come, in order.
        allow_missing: See `Collector.collect`.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        agent: Agent,
        requests: Callable[[int], Sequence[EpisodeRequest]],
        *,
        iterations: range,
        allow_missing: bool = False,
    ) -> None:
        self._collectors = collectors
        self._agent = agent
        self._requests = requests
        self._allow_missing = allow_missing
        self._iterations = iterations
        self._next = iterations.start
        self._batches: dict[int, LoopThread[Collection]] = {}

    @property
    def max_lag(self) -> int:
        """Most versions that sampling may be behind training."""
        return len(self._collectors) - 1

    def advance(self, version: int) -> None:
        """Starts the iterations that weights of `version`, which now sample, are new enough for."""
        while self._next in self._iterations and self._next <= version + 1 + self.max_lag:
            iteration = self._next
            self._next += 1
            self._batches[iteration] = self._start(iteration, self._requests(iteration))

    def take(self, iteration: int) -> Collection:
        """Waits for all episodes of an iteration.

        Raises:
            CollectionError: See `Collector.collect`.
            ValueError: The iteration was taken already, or the weights are too old for it to have started.
        """
        if iteration not in self._batches:
            raise ValueError(f"iteration {iteration} is not being played; call advance with a newer version first")
        collection = self._batches[iteration].result()
        del self._batches[iteration]  # not before: whoever is interrupted here closes it
        return collection

    def replay(self, iteration: int, requests: Sequence[EpisodeRequest]) -> Collection:
        """Plays further episodes of an iteration that has been taken, and waits for them."""
        self._batches[iteration] = self._start(iteration, requests)
        return self.take(iteration)

    def close(self) -> None:
        """Ends all episodes under way."""
        for batch in self._batches.values():
            batch.cancel()
        for batch in self._batches.values():
            batch.join()

    def _start(self, iteration: int, requests: Sequence[EpisodeRequest]) -> LoopThread[Collection]:
        # Its predecessor there has been taken: the weights it trained had to exist before this one could start.
        collector = self._collectors[iteration % len(self._collectors)]
        collecting = collector.collecting(self._agent, requests, allow_missing=self._allow_missing)
        return LoopThread(collecting, name=f"envgym-stream-{iteration}")


def lag_metrics(trajectories: Iterable[Trajectory], *, version: int) -> dict[str, float]:
    """The lag of sampled tokens: the version that is trained now minus the version that sampled them.

    Args:
        trajectories: A batch. Tokens without a version span count as sampled by `version`.
        version: Of the weights about to be updated.

    Returns:
        Over all sampled tokens `lag_mean`, `lag_max` and `stale_share` (tokens with a lag above 0); and `mixed_turns`,
        the share of turns that more than one version sampled. All 0 when nothing was sampled.
    """
    turns = [turn for trajectory in trajectories for turn in trajectory.turns if turn.action_ids]
    spans = [(version - span.version, span.end - span.start) for turn in turns for span in turn.version_spans]
    tokens = sum(len(turn.action_ids) for turn in turns) or 1
    return {
        "lag_mean": sum(lag * count for lag, count in spans) / tokens,
        "lag_max": float(max((lag for lag, _ in spans), default=0)),
        "stale_share": sum(count for lag, count in spans if lag > 0) / tokens,
        "mixed_turns": sum(len(turn.version_spans) > 1 for turn in turns) / (len(turns) or 1),
    }


def dropped_metrics(dropped: Sequence[Trajectory]) -> dict[str, float]:
    """What was played and cannot be trained on, by length: leaving out long episodes would bias a batch to short ones.

    Args:
        dropped: Episodes that failed.

    Returns:
        `dropped` episodes, and their `dropped_turns_mean`, `dropped_turns_max` and sampled `dropped_tokens`.
    """
    turns = [len(trajectory.turns) for trajectory in dropped]
    return {
        "dropped": float(len(turns)),
        "dropped_turns_mean": sum(turns) / len(turns) if turns else 0.0,
        "dropped_turns_max": float(max(turns, default=0)),
        "dropped_tokens": float(sum(trajectory.num_action_tokens for trajectory in dropped)),
    }
