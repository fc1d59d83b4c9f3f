"""Plays the episodes of coming iterations while the present one is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envgym.agent import Agent
from envgym.rollout.collector import Collection, Collector, EpisodeRequest
from envgym.rollout.loop import LoopThread


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
            self._batches[iteration] = self._play(iteration, self._requests(iteration))

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
        self._batches[iteration] = self._play(iteration, requests)
        return self.take(iteration)

    def close(self) -> None:
        """Ends all episodes under way."""
        for batch in self._batches.values():
            batch.cancel()
        for batch in self._batches.values():
            batch.join()

    def _play(self, iteration: int, requests: Sequence[EpisodeRequest]) -> LoopThread[Collection]:
        # Its predecessor there has been taken: the weights it trained had to exist before this one could start.
        collector = self._collectors[iteration % len(self._collectors)]
        collecting = collector.collecting(self._agent, requests, allow_missing=self._allow_missing)
        return LoopThread(collecting, name=f"envgym-stream-{iteration}")
