"""What the embedded engine remembers of an episode (`Session`) and of a turn it is asked for (`Request`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from envgym.types import Completion, FinishReason, SamplingParams, VersionSpan, append_span


class UniformStream:
    """A session's own random numbers: the k-th token it samples always meets the k-th number.

    Whatever the engine batches together, and however many numbers a turn reserved and left unused, the stream stays a
    function of the seed and of how many tokens the session has sampled.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._ahead = np.empty(0, dtype=np.float32)

    def peek(self, count: int) -> np.ndarray:
        """The next `count` numbers, float32 in [0, 1), without consuming them."""
        lacking = count - len(self._ahead)
        if lacking > 0:
            self._ahead = np.concatenate([self._ahead, self._generator.random(lacking, dtype=np.float32)])
        return self._ahead[:count]

    def consume(self, count: int) -> None:
        """Steps past `count` numbers that `peek` has shown."""
        self._ahead = self._ahead[count:]


@dataclass(eq=False, slots=True)
class Session:
    """One episode, seen from the engine.

    Attributes:
        id: What `open_session` returned.
        seed: Seed of the session's random stream; also its rank when rows are admitted.
        stream: The random numbers.
        tokens: The episode's tokens as last seen: the last prompt and its completion.
        num_cached: How many of them the slot's cache holds; 0 without a slot.
        slot: The cache slot, if the session has one.
        last_used: The engine step at which the session last finished a turn; the least recent loses its slot first.
        request: The turn that is queued or being decoded, if any.
    """

    id: int
    seed: int
    stream: UniformStream
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    slot: int | None = None
    last_used: int = 0
    request: Request | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One turn in the making.

    Attributes:
        session: Whose turn it is.
        prompt: The prompt's token ids.
        sampling: How to draw.
        num_shared: How many tokens of the prompt are known to equal the session's.
        arrived: The engine step at which it was submitted; requests are admitted in this order, then by seed and id.
        limit: Most tokens it may sample: `max_new_tokens`, or less where the context ends first.
        future: Where the caller waits.
        token_ids: What it has sampled, up to the last time its row was read out.
        logprobs: Their log-probabilities.
        support: Their supports, if recorded.
        spans: The weights that sampled them.
    """

    session: Session
    prompt: list[int]
    sampling: SamplingParams
    num_shared: int
    arrived: int
    limit: int
    future: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    support: list[tuple[int, ...]] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place in the queue: a function of the data, not of the order in which coroutines happened to run."""
        return self.arrived, self.session.seed, self.session.id

    def extend(self, token_ids: list[int], logprobs: list[float], version: int) -> None:
        """Appends what the weights of `version` sampled."""
        if not token_ids:
            return
        start = len(self.token_ids)
        self.token_ids += token_ids
        self.logprobs += logprobs
        append_span(self.spans, VersionSpan(start, len(self.token_ids), version))

    def completion(self, finish_reason: FinishReason) -> Completion:
        """The finished turn."""
        support = tuple(self.support) if self.sampling.has_support else None
        return Completion(tuple(self.token_ids), tuple(self.logprobs), finish_reason, tuple(self.spans), support)
