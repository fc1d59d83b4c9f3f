"""What the embedded engine remembers of an episode (`Session`) and of a turn it is asked for (`Request`)."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
    future: asyncio.Future[Completion] | None = None
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


def as_tokens(prompt_ids: Iterable[Any]) -> list[int]:
    """The token ids of a prompt, NumPy's integers and single tensors of one made Python's.

    Raises:
        TypeError: One of them is no integer.
    """
    tokens = list(prompt_ids)
    if set(map(type, tokens)) <= {int}:
        return tokens
    for place, token in enumerate(tokens):
        try:
            if isinstance(token, bool):  # equal to 0 or 1, and never meant as a token
                raise TypeError
            tokens[place] = operator.index(token)
        except TypeError:
            raise TypeError(
                f"token {place} of the prompt is {token!r} ({type(token).__name__}); token ids are integers"
            ) from None
    return tokens


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix of two token lists; one comparison at C speed when one extends the other."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


def shared_prefix(known: list[int], prompt: list[int], vocab_size: int) -> int:
    """How many leading tokens of a prompt equal the session's known ones; the others are checked to be in the
    vocabulary.

    Raises:
        ValueError: A token id is not in [0, vocab_size).
    """
    shared = common_prefix(known, prompt)
    new = prompt[shared:]
    if new and (min(new) < 0 or max(new) >= vocab_size):
        bad = next(token for token in new if not 0 <= token < vocab_size)
        raise ValueError(
            f"token id {bad} of the prompt is outside the model's vocabulary [0, {vocab_size}); use its tokenizer"
        )
    return shared
