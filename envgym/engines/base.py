"""The contracts of what samples: `Policy` (token ids in, sampled ids out) and `Engine` (a policy plus its life).

Below them stands what every policy checks of a prompt.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from envgym.types import Completion, SamplingParams

if TYPE_CHECKING:
    import torch
    from torch import nn


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


class Engine(ABC):
    """A policy plus its life in a training run, seen from one rank.

    Making an engine, `sync` and `close` are collectives of all ranks. The trainer moves the learner's memory; `sleep`
    and `wake` move the engine's only.

    Attributes:
        policy: What this rank samples from.
        shares_memory: Whether engine and learner take turns with the device's memory: `sleep` comes before the learner
            works, `wake` and then `sync` come after it.
        recoverable: Whether what samples may be lost and come back, as servers do. Episodes that were lost with it are
            then played again, after a `sync` with the same version.
    """

    policy: Policy
    shares_memory: bool = False
    recoverable: bool = False

    @abstractmethod
    def sync(self, module: nn.Module, version: int) -> None:
        """Gives what samples the present weights of a module. Repeating a version is harmless.

        On return everything in service samples with these weights and records this version; what could not take them
        is out of service.

        Args:
            module: The model that is trained, sharded or not, under its Hugging Face names.
            version: Number of the completed update.

        Raises:
            WeightSyncError: A rank is left with nothing to sample from, or the parameters do not fit.
        """

    def sleep(self) -> None:  # noqa: B027 - most engines need none
        """Gives the device's memory up; nothing is sampled until `wake` and `sync`."""

    def wake(self) -> None:  # noqa: B027 - most engines need none
        """Takes the memory back; what it holds is undefined until the next `sync`."""

    def close(self) -> None:  # noqa: B027 - most engines need none
        """Frees what the engine holds and stops what it started."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is made from, besides its own section of the configuration.

    Attributes:
        model_dir: The model that is trained, in Hugging Face format.
        folder: For logs and other files of the engine, in the run folder; made by whoever needs it.
        device: Device of this rank's learner.
        dtype: Arithmetic of the learner: "float32", "float64" or "bfloat16".
        concurrency: Episodes of one iteration that this rank plays at once.
        max_policy_lag: Iterations that may be played ahead, while the learner works.
        deterministic: Whether what is sampled must not depend on timing, where the engine can do that.
        seed: Seed of the run.
    """

    model_dir: Path
    folder: Path
    device: torch.device
    dtype: str
    concurrency: int
    max_policy_lag: int = 0
    deterministic: bool = True
    seed: int = 0


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


def shared_prefix(known: list[int], prompt: list[int], vocab_size: int) -> int:
    """How many leading tokens of a prompt equal the session's known ones; the others are checked to be in the
    vocabulary.

    Raises:
        ValueError: A token id is not in [0, vocab_size).
    """
    shared = min(len(known), len(prompt))
    if known[:shared] != prompt[:shared]:  # one comparison at C speed where one extends the other
        shared = next(place for place in range(shared) if known[place] != prompt[place])
    new = prompt[shared:]
    if new and (min(new) < 0 or max(new) >= vocab_size):
        bad = next(token for token in new if not 0 <= token < vocab_size)
        raise ValueError(
            f"token id {bad} of the prompt is outside the model's vocabulary [0, {vocab_size}); use its tokenizer"
        )
    return shared


def room_after(prompt: list[int], context_length: int) -> int:
    """How many tokens the context holds behind a prompt.

    Raises:
        ValueError: The prompt is empty, or there is no room.
    """
    if not prompt:
        raise ValueError("the prompt is empty; pass at least one token")
    if len(prompt) >= context_length:
        raise ValueError(
            f"a prompt of {len(prompt)} tokens leaves no room in the context of {context_length}; end the episode, or "
            f"shorten the prompt to at most {context_length - 1} tokens"
        )
    return context_length - len(prompt)
