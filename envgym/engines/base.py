"""The contract of a policy: token ids in, sampled token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from envgym.types import Completion, SamplingParams


@runtime_checkable
class Policy(Protocol):
    """Samples continuations of token sequences, for many episodes at once.

    A *session* is one episode seen from the policy: it keeps the episode's random stream and, in the embedded engine,
    the cache of its tokens from turn to turn; served policies route by it.
    """

    @property
    def version(self) -> int:
        """Version of the weights that the next token is sampled with."""

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its continuation together."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""

    def open_session(self, *, seed: int) -> int:
        """Announces an episode and returns its session id. What the session samples is a function of the weights, the
        prompts and this seed."""

    def close_session(self, session: int) -> None:
        """Ends a session and frees what it held; closing it twice does nothing."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: int) -> Completion:
        """Samples one turn.

        Args:
            prompt_ids: The whole token stream so far. Within a session each prompt extends the last prompt plus its
                completion; a policy may reuse cached state for the common prefix.
            sampling: How to draw.
            session: What `open_session` returned.

        Raises:
            ValueError: An id is outside the vocabulary, the prompt is empty, or it leaves no room in the context.
        """
