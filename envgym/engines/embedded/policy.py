"""The embedded policy: batched generation in this process, and the reference for log-probabilities."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from envgym.engines.base import as_tokens, room_after, shared_prefix
from envgym.engines.embedded.decoder import Decoder
from envgym.engines.embedded.scheduler import Scheduler
from envgym.engines.embedded.sessions import Request, Session, UniformStream
from envgym.engines.embedded.weights import DecoderShape, fuse
from envgym.errors import WeightSyncError
from envgym.model_folder import load_model
from envgym.types import Completion, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_log = logging.getLogger(__name__)
_STALL_S = 60.0
"""Seconds after which deterministic mode says which session it waits for."""


class TorchPolicy:
    """A `Policy` that generates with torch in this process.

    Requests of all sessions are decoded together, one token a step (continuous batching). A session keeps its cache
    slot and the keys and values of its tokens from turn to turn, so that only what a prompt adds is computed. All calls
    must come from one thread; the policy may be used by several event loops one after the other, not at the same time.

    Deterministic mode (the default): what is sampled is a function of weights, prompts, sampling parameters and session
    seeds. Each session has its own random stream, but the composition of a batch changes the rounding of its logits,
    and that could flip a draw. Therefore a step is taken only when every open session is waiting in the engine; a
    session whose environment is stepping holds up the others. The price is wall-clock time when environments are slow,
    and this rule for callers:

    - an open session that neither generates nor is closed stops everything, so close a session as soon as its episode
      ends, whatever ended it;
    - open sessions before anything is awaited (all that start together, then the successor of one in the same breath as
      the old one is closed), and give them distinct seeds; otherwise which sessions share a step is up to timing.

    With `deterministic=False` a step takes whatever waits. The log-probabilities are right either way.

    Args:
        model_or_folder: A transformers causal language model (llama, qwen2 or qwen3; its parameters are copied) or the
            folder of one.
        max_concurrency: Number of cache slots, that is of sequences decoded together. More sessions may be open: idle
            ones then lose their slot, least recently used first, and are computed again when they return.
        device: Where to compute.
        dtype: Type of weights and cache; log-probabilities are computed in float32.
        deterministic: See above.
        context_length: Most tokens of a sequence; the model's own limit when None.

    Attributes:
        context_length: Most tokens of a prompt and its continuation together.
        vocab_size: Token ids are in [0, vocab_size).

    Raises:
        ModelError: The model cannot be loaded or its family is not supported.
        ValueError: `context_length` exceeds the model's, or `max_concurrency` is below 1.
    """

    def __init__(
        self,
        model_or_folder: PreTrainedModel | str | Path,
        *,
        max_concurrency: int = 256,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        deterministic: bool = True,
        context_length: int | None = None,
    ) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {max_concurrency}")
        model = load_model(model_or_folder, dtype) if isinstance(model_or_folder, str | Path) else model_or_folder
        shape = DecoderShape.from_config(model.config)
        if context_length is not None and not 2 <= context_length <= shape.context_length:
            raise ValueError(
                f"context_length must be from 2 to the model's {shape.context_length}, got {context_length}"
            )
        self.deterministic = deterministic
        self.context_length = context_length or shape.context_length
        self.vocab_size = shape.vocab_size
        self._device, self._dtype = torch.device(device), dtype
        weights = fuse(shape, model.state_dict(), dtype=dtype, device=self._device)
        self._scheduler = Scheduler(Decoder(shape, weights), max_concurrency=max_concurrency)
        self._sessions: dict[int, Session] = {}
        self._session_ids = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    @property
    def version(self) -> int:
        """Version of the weights that the next token is sampled with; 0 until the first update."""
        return self._scheduler.version

    def open_session(self, *, seed: int) -> int:
        """Announces an episode and returns its session id.

        Args:
            seed: Non-negative seed of the session's random stream. Sessions with equal seeds and prompts sample alike.
        """
        if seed < 0:
            raise ValueError(f"the seed of a session must not be negative, got {seed}")
        session = Session(id=next(self._session_ids), seed=seed, stream=UniformStream(seed))
        self._sessions[session.id] = session
        return session.id

    def close_session(self, session: int) -> None:
        """Ends a session and frees its slot; a turn it is in fails with a ValueError. Closing it twice does nothing."""
        closed = self._sessions.pop(session, None)
        if closed is None:
            return
        if (request := closed.request) is not None:
            self._scheduler.cancel(request)
            early = f"session {session} was closed while it was generating; close it after its last turn"
            _fail(request, ValueError(early))
        self._scheduler.release(closed)
        self._notify()

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: int) -> Completion:
        """Samples one turn; see `Policy.generate`.

        A prompt that does not extend the session's tokens is right too: what it shares with them is reused, the rest
        computed.

        Raises:
            ValueError: The session is not open or already generates, a token id is outside the vocabulary, the prompt
                is empty, or it leaves no room in the context.
            ModelError: The model's logits are not finite.
        """
        owner = self._sessions.get(session)
        if owner is None:
            raise ValueError(f"session {session} is not open; call open_session and pass the id it returns")
        if owner.request is not None:
            raise ValueError(f"session {session} is already generating; await its turn before asking for the next")
        prompt = as_tokens(prompt_ids)
        loop = asyncio.get_running_loop()
        request = Request(
            session=owner,
            prompt=prompt,
            sampling=sampling,
            limit=min(sampling.max_new_tokens, room_after(prompt, self.context_length)),
            num_shared=shared_prefix(owner.tokens, prompt, self.vocab_size),
            arrived=self._scheduler.num_steps,
            future=loop.create_future(),
        )
        self._ensure_worker(loop)
        self._scheduler.submit(request)
        self._notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._scheduler.cancel(request)
            self._notify()
            raise

    def load_weights(self, parameters: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Samples with other weights from the next token on; turns under way go on with them. All caches are dropped.

        Either all weights are replaced or, after an error, none. When this returns, nothing holds on to the tensors.

        Args:
            parameters: Every parameter by its Hugging Face name; a tied `lm_head.weight` may be among them or not.
            version: What the new weights are called.

        Raises:
            WeightSyncError: A name is unknown or missing, came twice, or a shape differs.
        """
        shape = self._scheduler.decoder.shape
        held, arrived, problems = shape.parameter_shapes(), dict[str, torch.Tensor](), list[str]()
        for name, tensor in parameters:  # to the end in any case: where they are sharded, ranks gather them together
            if name == "lm_head.weight" and name not in held:
                continue
            if name not in held:
                problems.append(f"unknown parameter '{name}': it is not in this model; send those of one like it")
            elif tuple(tensor.shape) != held[name]:
                problems.append(f"parameter '{name}' has shape {tuple(tensor.shape)}, expected {held[name]}")
            elif name in arrived:
                problems.append(f"parameter '{name}' arrived twice in one update; send each once")
            else:
                arrived[name] = tensor.detach().to(device=self._device, dtype=self._dtype)
        if missing := held.keys() - arrived.keys():
            problems.append(f"{len(missing)} parameters did not arrive (the first is '{min(missing)}'); send all")
        if problems:
            raise WeightSyncError(f"Weight update abandoned, version {self.version} stays: {problems[0]}.")
        weights = fuse(shape, arrived, dtype=self._dtype, device=self._device)
        self._scheduler.replace_weights(weights, version)
        self._notify()

    def _ensure_worker(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the worker on this loop unless it runs there already, and forgets turns of a loop that is gone."""
        if self._worker is not None and not self._worker.done() and self._loop is loop:
            return
        if self._loop is not None and self._loop is not loop and self._scheduler.num_requests:
            if not self._loop.is_closed():
                raise RuntimeError("this TorchPolicy is in use by another event loop; use one policy for each loop")
            self._scheduler.abort()
        self._loop, self._wake = loop, asyncio.Event()
        self._worker = loop.create_task(self._work(), name="TorchPolicy worker")

    async def _work(self) -> None:
        """Steps the scheduler as long as there is something to do."""
        scheduler = self._scheduler
        while scheduler.num_requests:
            if self.deterministic and scheduler.num_requests < len(self._sessions):
                self._wake.clear()
                stalled = asyncio.get_running_loop().call_later(_STALL_S, self._report_stall)
                try:
                    await self._wake.wait()
                finally:
                    stalled.cancel()
                continue
            try:
                finished = scheduler.step()
            except Exception as error:
                for request in scheduler.abort():
                    _fail(request, error)
                return
            for request, completion in finished:
                if not request.future.done():
                    request.future.set_result(completion)
            await asyncio.sleep(0)

    def _notify(self) -> None:
        """Lets the worker look again, unless its loop is gone."""
        if self._loop is not None and not self._loop.is_closed():
            self._wake.set()

    def _report_stall(self) -> None:
        absent = [session.id for session in self._sessions.values() if session.request is None]
        if absent:
            _log.warning(
                "%d turns have waited %.0f s for session %d and %d more, which are open but not generating; close them "
                "if their episodes are over, or use deterministic=False if their environments are that slow",
                self._scheduler.num_requests,
                _STALL_S,
                absent[0],
                len(absent) - 1,
            )


def _fail(request: Request, error: Exception) -> None:
    if not request.future.done():
        request.future.set_exception(error)
