"""Continuous batching over cache slots: which sequences are prefilled and decoded in each step."""

from __future__ import annotations

import numpy as np
import torch

from envgym.engines.embedded.decoder import Decoder
from envgym.engines.embedded.sampling import RowSampling, sample
from envgym.engines.embedded.sessions import Request, Session
from envgym.engines.embedded.weights import DecoderWeights
from envgym.errors import ModelError
from envgym.types import Completion

_WAVE = 0.1
"""Waiting rows are admitted once they are this fraction of the decoding ones: prefills and empty rows both cost."""
_PATIENCE = 16
"""Most steps that a row waits for its wave to fill."""
_DENSE = 0.6
"""From this share of busy slots on, decoding all of them in place is cheaper than gathering the busy ones' cache."""


class Scheduler:
    """Runs the turns of many sessions, one token for each decoding row and step. Not thread-safe; knows nothing of
    asyncio.

    The prompt of a turn is prefilled up to its last token, which is then fed to the decoder like any sampled one.
    Everything decided here (order, slots, waves) depends on what was submitted between which steps, never on the clock.

    Args:
        decoder: The model with its cache.
        max_concurrency: Number of cache slots; further sessions queue, and idle ones lose their slot to them.
        version: Version of the decoder's weights.
    """

    def __init__(self, decoder: Decoder, *, max_concurrency: int, version: int = 0) -> None:
        self.decoder = decoder
        self.version = version
        self.num_steps = 0
        self._slots: list[Session | None] = [None] * max_concurrency
        self._waiting: list[Request] = []
        self._rows = np.empty(0, dtype=np.int64)  # slots that decode, ascending
        self._sampling: RowSampling | None = None  # of the rows, in their order
        # Per slot. An idle slot's position is where its cache ends, so that decoding it along does no harm.
        self._token, self._position, self._count, self._limit, self._top_k = np.zeros(
            (5, max_concurrency), dtype=np.int64
        )
        self._temperature, self._top_p = np.ones((2, max_concurrency))
        self._stop = np.full((max_concurrency, 1), -1, dtype=np.int64)
        # Per slot and token of the turn since the row was admitted.
        self._out_ids = np.zeros((max_concurrency, 64), dtype=np.int64)
        self._out_logprobs = np.zeros((max_concurrency, 64), dtype=np.float32)
        self._uniforms = np.zeros((max_concurrency, 64), dtype=np.float32)

    @property
    def num_requests(self) -> int:
        """Number of requests that are queued or decoding."""
        return len(self._waiting) + len(self._rows)

    def submit(self, request: Request) -> None:
        """Queues a turn. Its session must have none under way."""
        assert request.session.request is None
        request.session.request = request
        self._waiting.append(request)

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, Completion]]:
        """Admits a wave of waiting rows if it is time to, then samples one token for each decoding row.

        Returns:
            The turns that ended.

        Raises:
            ModelError: The model's logits are not finite.
        """
        self.num_steps += 1
        if self._waiting and self._wave_is_due():
            self._admit()
        if not len(self._rows):
            return []
        rows, count = self._rows, self._count[self._rows]
        logits = self._decode(rows)
        assert self._sampling is not None
        ids, logprobs, kept = sample(
            logits, torch.from_numpy(self._uniforms[rows, count]).to(logits.device), self._sampling
        )
        new_ids, new_logprobs = ids.cpu().numpy(), logprobs.cpu().numpy()
        if not np.isfinite(new_logprobs).all():
            raise ModelError(
                "The model's logits are not finite, so nothing can be sampled; check the weights it was given."
            )
        if kept is not None:
            table = kept.cpu().numpy()
            for row in self._sampling.has_support.nonzero()[0].tolist():
                self._decoding(rows[row]).support.append(tuple(table[row].nonzero()[0].tolist()))
        self._out_ids[rows, count] = new_ids
        self._out_logprobs[rows, count] = new_logprobs
        self._token[rows] = new_ids
        self._position[rows] += 1
        self._count[rows] = count = count + 1
        stopped = (self._stop[rows] == new_ids[:, None]).any(1)
        ended = stopped | (count >= self._limit[rows])
        if not ended.any():
            return []
        finished = []
        for slot, at_stop in zip(rows[ended].tolist(), stopped[ended].tolist(), strict=True):
            request = self._read_out(slot)
            request.session.request = None
            request.session.last_used = self.num_steps
            at_length = len(request.token_ids) == request.sampling.max_new_tokens
            finished.append((request, request.completion("stop" if at_stop else "length" if at_length else "context")))
        self._set_rows(rows[~ended])
        return finished

    def cancel(self, request: Request) -> None:
        """Takes a turn out, whether queued or decoding; the session keeps what was cached."""
        session = request.session
        if session.request is not request:
            return
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            assert session.slot is not None
            self._read_out(session.slot)
            self._set_rows(self._rows[self._rows != session.slot])
        session.request = None

    def abort(self) -> list[Request]:
        """Takes all turns out and forgets all caches, also when a step failed half-way.

        Returns:
            The turns that were queued or decoding.
        """
        decoding = [session.request for session in self._slots if session is not None and session.request is not None]
        aborted = list(dict.fromkeys(decoding + self._waiting))
        for request in aborted:
            request.session.request = None
        self._waiting = []
        self._forget()
        return aborted

    def release(self, session: Session) -> None:
        """Frees the slot of a session that has no turn under way."""
        assert session.request is None
        if session.slot is not None:
            self._slots[session.slot] = None
            self._position[session.slot] = 0
        session.slot, session.num_cached = None, 0

    def replace_weights(self, weights: DecoderWeights, version: int) -> None:
        """Samples with other weights of the same shape from the next step on.

        All caches are forgotten; decoding rows go back to the queue and are prefilled again.
        """
        self._waiting += map(self._read_out, self._rows.tolist())
        self._forget()
        self.decoder.weights = weights
        self.version = version

    def _forget(self) -> None:
        """Nothing decodes and nothing is cached."""
        self._set_rows(self._rows[:0])
        self._position[:] = 0
        for session in self._slots:
            if session is not None:
                session.num_cached = 0

    def _wave_is_due(self) -> bool:
        num_decoding = len(self._rows)
        with_slot = sum(request.session.slot is not None for request in self._waiting)
        reclaimable = len(self._slots) - num_decoding - with_slot  # free, or held by sessions between turns
        admissible = with_slot + min(len(self._waiting) - with_slot, reclaimable)
        oldest = min(request.arrived for request in self._waiting)
        overdue = self.num_steps - oldest > _PATIENCE
        return admissible > 0 and (not num_decoding or admissible >= _WAVE * num_decoding or overdue)

    def _admit(self) -> None:
        """Gives waiting requests slots, in order, and prefills what their slots lack."""
        self._waiting.sort(key=lambda request: request.order)
        free = [slot for slot, session in enumerate(self._slots) if session is None]
        idle = [session for session in self._slots if session is not None and session.request is None]
        idle.sort(key=lambda session: (session.last_used, session.seed, session.id), reverse=True)
        free.reverse()
        admitted: list[tuple[Request, int]] = []
        queued: list[Request] = []
        for request in self._waiting:
            session = request.session
            if session.slot is None:
                if not free and idle:
                    evicted = idle.pop()
                    assert evicted.slot is not None
                    free.append(evicted.slot)
                    self.release(evicted)
                if not free:
                    queued.append(request)
                    continue
                session.slot = free.pop()
                self._slots[session.slot] = session
            admitted.append((request, session.slot))
        new_tokens, starts, slots = [], [], []
        for request, slot in admitted:
            ids = request.prompt + request.token_ids if request.token_ids else request.prompt
            session = request.session
            start = min(session.num_cached, request.num_shared, len(ids) - 1)
            session.num_cached = start
            if start < len(ids) - 1:
                new_tokens.append(np.array(ids[start:-1], dtype=np.int64))
                starts.append(start)
                slots.append(slot)
            self._activate(request, slot, ids)
        longest = max(len(request.prompt) + request.limit for request, _ in admitted)
        self.decoder.reserve(max(slot for _, slot in admitted) + 1, longest)
        if slots:
            self.decoder.prefill(new_tokens, starts, slots)
        self._waiting = queued
        self._set_rows(np.array(sorted([*self._rows.tolist(), *(slot for _, slot in admitted)]), dtype=np.int64))

    def _activate(self, request: Request, slot: int, ids: list[int]) -> None:
        """Fills the per-slot arrays of a request that starts, or goes on, with `ids` as its tokens so far."""
        sampling, left = request.sampling, request.limit - len(request.token_ids)
        if (lacking := left - self._uniforms.shape[1]) > 0:
            extra = ((0, 0), (0, max(lacking, self._uniforms.shape[1])))
            self._out_ids, self._out_logprobs = np.pad(self._out_ids, extra), np.pad(self._out_logprobs, extra)
            self._uniforms = np.pad(self._uniforms, extra)
        num_stops = len(sampling.stop_token_ids)
        if (lacking := num_stops - self._stop.shape[1]) > 0:
            self._stop = np.pad(self._stop, ((0, 0), (0, lacking)), constant_values=-1)
        self._token[slot], self._position[slot] = ids[-1], len(ids) - 1
        self._count[slot], self._limit[slot] = 0, left
        self._temperature[slot], self._top_p[slot] = sampling.temperature, sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._stop[slot] = -1
        self._stop[slot, :num_stops] = sampling.stop_token_ids
        self._uniforms[slot, :left] = request.session.stream.peek(left)

    def _decode(self, rows: np.ndarray) -> torch.Tensor:
        """Logits [len(rows), vocab_size] after each row's pending token."""
        length = int(self._position[rows].max()) + 1
        span = int(rows[-1]) + 1
        if len(rows) < _DENSE * span:
            return self.decoder.decode(self._token[rows], self._position[rows], rows, length)
        self.decoder.reserve(span, int(self._position[:span].max()) + 1)
        logits = self.decoder.decode(self._token[:span], self._position[:span], None, length)
        return logits if len(rows) == span else logits.index_select(0, torch.from_numpy(rows).to(logits.device))

    def _read_out(self, slot: int) -> Request:
        """Moves what a row has sampled since it was admitted into its request and session."""
        request, count = self._decoding(slot), int(self._count[slot])
        session = request.session
        request.extend(self._out_ids[slot, :count].tolist(), self._out_logprobs[slot, :count].tolist(), self.version)
        session.stream.consume(count)
        session.tokens = request.prompt + request.token_ids
        session.num_cached = len(session.tokens) - 1  # the last token was sampled, not fed
        request.num_shared = len(session.tokens)
        self._position[slot] = session.num_cached
        return request

    def _set_rows(self, rows: np.ndarray) -> None:
        self._rows = rows
        device = self.decoder.weights.embedding.device
        self._sampling = RowSampling(self._temperature[rows], self._top_k[rows], self._top_p[rows], device=device)

    def _decoding(self, slot: int) -> Request:
        session = self._slots[slot]
        assert session is not None and session.request is not None
        return session.request
