"""The served policy: generation on one or more SGLang servers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from envgym.engines.base import as_tokens, room_after, shared_prefix
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.request import (
    UNKNOWN_VERSION,
    Aborted,
    Generation,
    encode_request,
    encode_sampling,
    encode_tokens,
    parse_answer,
    parse_version,
)
from envgym.engines.sglang.routing import RoutedServer, ServedSession, ServerPool, ServingStatistics
from envgym.engines.sglang.served_model import ServedModel, agreed_vocabulary
from envgym.errors import ModelError, ServerError, ServerUnreachableError
from envgym.types import Completion, FinishReason, SamplingParams

_log = logging.getLogger(__name__)
_POLL_S = 0.05
"""How often a turn looks whether a server is in service again."""
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 5.0
_PROBE_PROMPT = "0"


class SGLangPolicy:
    """A `Policy` that generates on SGLang servers.

    A session stays with one server, whose prefix cache holds its tokens, as long as that server is in service; new ones
    go to the least loaded. What is returned is exact: ids in and ids out, each with the log-probability it was drawn
    with, the version of the weights that drew it and, under top-k or top-p, the tokens that could have been drawn.
    Unlike `TorchPolicy`, what is drawn depends on timing: servers batch whatever comes together, and ignore seeds.

    Under top-p without top-k only the `max_support` most probable tokens (4096 unless the server was started with
    another `--sampling-mask-max-tokens`) can be drawn from larger vocabularies. With both, the server keeps the tokens
    that either would keep of the whole distribution, where `TorchPolicy` applies top-p to what top-k has left, so that
    its supports are smaller. Both record the support, and log-probabilities are those within it.

    When a generation fails because a server cannot be reached, the turn is generated again, on another server where
    there is one. Exactly one completion is returned for a turn. A server that cannot be reached is out of service until
    it generates again, with the weights of this policy's version. Generations on other servers do not notice.

    `generate` may be called from any event loop, everything else from any thread.

    Args:
        servers: Addresses or clients of the servers, which serve the same model.
        context_length: Most tokens of a sequence; as many as every server accepts when None. This is a few less than
            the model's own limit: give an embedded policy the same number where both must end an episode alike.
        vocab_size: Size of the vocabulary; needed only where the servers' model folders cannot be read from here.
        model_folder: The model that is trained, to compare the servers' vocabulary and architecture with.
        run_id: Whose weights sample: of servers that hold others, for example those they were started with, none is in
            service before `weights_updated` finds the right ones. Any may sample when empty.
        max_attempts: How often a turn is generated before it fails.
        recovery_timeout_s: How long turns wait once no server is in service. Later ones give the servers
            `probe_timeout_s` to show that they are back.
        probe_timeout_s: How long a server out of service may take to show that it generates.
        on_return: Called, in a thread, with the client of a server that returned with other weights and the version it
            must have. It sends them. Without it such a server waits for the next weight update.

    Attributes:
        clients: Every server, in service or not.
        version: Version of the weights that the next token is sampled with.
        context_length: Most tokens of a prompt and its continuation together.
        vocab_size: Token ids are in [0, vocab_size).

    Raises:
        ModelError: The servers do not agree with each other or with `model_folder`, or the vocabulary is unknown.
        ServerUnreachableError: A server does not answer.
        ValueError: No server is named, one is named twice, or a number is out of range.
    """

    def __init__(
        self,
        servers: Sequence[str | SGLangClient] | str | SGLangClient,
        *,
        context_length: int | None = None,
        vocab_size: int | None = None,
        model_folder: str | Path | None = None,
        run_id: str = "",
        max_attempts: int = 5,
        recovery_timeout_s: float = 300.0,
        probe_timeout_s: float = 10.0,
        on_return: Callable[[SGLangClient, int], None] | None = None,
    ) -> None:
        named = [servers] if isinstance(servers, str | SGLangClient) else list(servers)
        if not named:
            raise ValueError("name at least one server, for example http://127.0.0.1:30000")
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {max_attempts}")
        if context_length is not None and context_length < 2:
            raise ValueError(f"context_length must be at least 2, got {context_length}")
        clients = [SGLangClient(server) if isinstance(server, str) else server for server in named]
        urls = [client.url for client in clients]
        if len(set(urls)) < len(urls):
            raise ValueError(f"a server is named twice: {', '.join(urls)}; name each once")
        self.clients = tuple(clients)
        self.on_return = on_return
        self._max_attempts = max_attempts
        self._recovery_timeout_s, self._probe_timeout_s = recovery_timeout_s, probe_timeout_s
        self._run_id, self._model_folder = run_id, model_folder
        self._pool = ServerPool(clients, waiting="has not been given any weights yet" if run_id else None)
        models = {c.url: ServedModel.from_answers(c.model_info(), c.server_info()) for c in clients}
        self.vocab_size, self._tokens = agreed_vocabulary(models, vocab_size=vocab_size, folder=model_folder)
        for url, model in models.items():
            model.check(url, self.vocab_size, self._tokens, model_folder)
        contexts = {url: model.context_length for url, model in models.items()}
        if len(set(contexts.values())) > 1:
            lengths = ", ".join(f"{url}: {length}" for url, length in contexts.items())
            raise ModelError(f"the servers' contexts differ ({lengths}); start them alike")
        self.context_length = min(*contexts.values(), context_length or sys.maxsize)
        self._max_support = min(model.max_support for model in models.values())
        versions = [parse_version(model.weights, run_id) for model in models.values()]
        self.version = max(0, *versions)
        for server, held in zip(self._pool.servers, versions, strict=True):
            if not run_id and held != self.version:
                self._pool.take_out(server, self._stale(server, held))
        self._lock = threading.Lock()
        self._sessions: dict[int, ServedSession] = {}
        self._session_ids = itertools.count()
        self._counts: Counter[str] = Counter()
        self._background: set[asyncio.Task[None]] = set()

    def open_session(self, *, seed: int) -> int:
        """Announces an episode and returns its session id; it is nobody's load until it generates.

        Args:
            seed: Without effect here, since servers draw as their batches come together.
        """
        with self._lock:
            session = ServedSession(next(self._session_ids))
            self._sessions[session.id] = session
        return session.id

    def close_session(self, session: int) -> None:
        """Ends a session; a turn it is in is aborted and fails with a ValueError. Closing it twice does nothing."""
        with self._lock:
            closed = self._sessions.pop(session, None)
            if closed is None:
                return
            closed.closed = True
            if closed.server is not None:
                self._pool.leave(closed.server)
                closed.server = None
            turn = closed.turn
        if turn is not None and not turn[1].is_closed():
            turn[1].call_soon_threadsafe(turn[0].cancel)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: int) -> Completion:
        """Samples one turn; see `Policy.generate`. Cancelling it ends the generation on the server.

        Raises:
            TypeError: The prompt is no sequence of integers.
            ValueError: The session is not open or already generates, a token id is outside the vocabulary, the prompt
                is empty, it leaves no room in the context, or the server cannot sample as asked.
            ServerUnreachableError: No server generated the turn.
            ServerError: The server refused the turn, or its answer is not sound.
        """
        prompt = as_tokens(prompt_ids)
        fields = encode_sampling(sampling, vocab_size=self.vocab_size, max_support=self._max_support)
        with self._lock:
            limit = min(sampling.max_new_tokens, room_after(prompt, self.context_length))
            owner = self._sessions.get(session)
            if owner is None:
                raise ValueError(f"session {session} is not open; call open_session and pass the id it returns")
            if owner.turn is not None:
                raise ValueError(f"session {session} is already generating; await its turn before asking for the next")
            # An id outside the vocabulary ends the server.
            if shared_prefix(owner.tokens, prompt, self.vocab_size) == len(owner.tokens):
                owner.extend(prompt[len(owner.tokens) :])
            else:
                owner.tokens, owner.encoded = prompt, encode_tokens(prompt)
            turn = asyncio.ensure_future(self._sample(owner, sampling, fields, limit))
            owner.turn = (turn, turn.get_loop())
        try:
            return await turn
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if owner.closed and not (caller is not None and caller.cancelling()):
                raise ValueError(
                    f"session {session} was closed while it was generating; close it after its last turn"
                ) from None
            raise
        finally:
            owner.turn = None

    def weights_updated(self, version: int) -> None:
        """Says that servers now hold the weights of `version`. Asks each which it holds: those with others, and those
        that do not answer, go out of service, and the rest are in."""
        self.version = version
        for server in self._pool.servers:
            try:
                info = server.client.model_info(timeout_s=self._probe_timeout_s)
            except ServerError as error:
                self._pool.take_out(server, str(error))
                continue
            held = self._held(server, info.get("weight_version"))
            if held == version:
                self._pool.put_in(server)
            else:
                self._pool.take_out(server, self._stale(server, held))

    def pin_weights(self) -> None:
        """From now on only the weights that each server holds at this moment sample, by their name.

        A server that somebody gives others is out of service, and turns that these have sampled are not returned.

        Raises:
            ServerError: A server does not answer.
        """
        for server in self._pool.servers:
            server.pinned = server.client.model_info(timeout_s=self._probe_timeout_s).get("weight_version")

    def statistics(self) -> ServingStatistics:
        """What this policy has done so far."""
        requests = {server.client.url: server.num_requests for server in self._pool.servers}
        problems = {server.client.url: server.problem for server in self._pool.servers}
        out_of_service = {url: problem for url, problem in problems.items() if problem is not None}
        with self._lock:
            return ServingStatistics(**self._counts, requests=requests, out_of_service=out_of_service)

    async def close(self) -> None:
        """Closes the connections of the running event loop."""
        for client in self.clients:
            await client.close()

    # -- one turn -----------------------------------------------------------------------------------------------------

    async def _sample(
        self, owner: ServedSession, sampling: SamplingParams, fields: dict[str, Any], limit: int
    ) -> Completion:
        """One turn. The server also stops where the model's configuration ends a text; the turn goes on from there."""
        whole = Generation([], [], [], [] if sampling.has_support else None)
        prompt_tokens = cached = 0
        while True:
            piece = await self._generation(owner, sampling, {**fields, "max_new_tokens": limit - len(whole.token_ids)})
            if not whole.token_ids:
                prompt_tokens, cached = piece.num_prompt_tokens, piece.num_cached_tokens
            whole.append(piece)
            owner.extend(piece.token_ids)
            at_stop = whole.token_ids[-1] in sampling.stop_token_ids
            if at_stop or len(whole.token_ids) >= limit:
                break
        reason: FinishReason = "length" if limit == sampling.max_new_tokens else "context"
        self._count(turns=1, tokens=len(whole.token_ids), prompt_tokens=prompt_tokens, cached_prompt_tokens=cached)
        return Completion(
            tuple(whole.token_ids),
            tuple(whole.logprobs),
            "stop" if at_stop else reason,
            tuple(whole.version_spans),
            None if whole.support is None else tuple(whole.support),
        )

    async def _generation(self, owner: ServedSession, sampling: SamplingParams, fields: dict[str, Any]) -> Generation:
        """One generation from the session's tokens, asked for until a server answers."""
        with_support = sampling.has_support and sampling.top_k != 1
        problem, elsewhere = "", False
        for attempt in range(self._max_attempts):
            if attempt:
                self._count(retries=1)
                backoff = min(_FIRST_BACKOFF_S * 2 ** (attempt - 1), _LONGEST_BACKOFF_S)
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            server = await self._server_of(owner, elsewhere=elsewhere)
            during, version, request_id = server.times_in_service, self.version, uuid.uuid4().hex
            body = encode_request(owner.encoded, request_id, fields, with_support=with_support)
            try:
                with self._pool.running(server):
                    answer = await server.client.generate(body)
                piece = parse_answer(answer, sampling, url=server.client.url, vocab_size=self.vocab_size)
            except asyncio.CancelledError:
                await self._abort(server, request_id)
                raise
            except ServerUnreachableError as error:
                # It may be generating for nobody.
                problem = str(error)
                self._pool.take_out(server, problem, during=during)
                self._start(self._abort(server, request_id))
            except Aborted as aborted:
                problem, elsewhere = str(aborted), False
            except ServerError as error:
                if error.status is None or error.status < 500:
                    raise
                problem, elsewhere = str(error), True
            else:
                # All of it: weights may have come while it was under way, and somebody else may have sent them.
                held = min(self._held(server, span["version"]) for span in answer["meta_info"]["weight_versions"])
                if held >= version:
                    return piece
                problem = self._stale(server, held)
                self._pool.take_out(server, problem, during=during)
        raise ServerUnreachableError(f"no server generated the turn in {self._max_attempts} attempts; last: {problem}")

    async def _server_of(self, owner: ServedSession, *, elsewhere: bool) -> RoutedServer:
        """The server a session generates on, waiting for one if none is in service."""
        began, grace = time.monotonic(), min(self._probe_timeout_s, self._recovery_timeout_s)
        waits = 0
        while True:
            for server in self._pool.due(at_once=waits == 1):
                # A task that is cancelled before it starts would not say so itself.
                self._start(self._probe(server)).add_done_callback(partial(self._pool.probed, server))
            with self._lock:
                if not owner.closed:
                    owner.server = self._pool.place(owner.server, elsewhere=elsewhere)
                    if owner.server is not None:
                        return owner.server
            # Together, not each anew: what is played in the place of a failed episode would wait as long once more.
            if time.monotonic() >= max(self._pool.unserved_since() + self._recovery_timeout_s, began + grace):
                raise ServerUnreachableError(
                    f"no policy server has been in service for {self._recovery_timeout_s:g} s: {self._pool.problems()}"
                )
            await asyncio.sleep(_POLL_S)
            waits += 1

    async def _abort(self, server: RoutedServer, request_id: str) -> None:
        """Ends a generation that nobody waits for. Where this does not arrive, the server notices that the connection
        is gone."""
        self._count(aborted=1)
        try:
            await server.client.abort_soon(request_id)
        except ServerError as error:
            _log.debug("could not abort %s: %s", request_id, error)

    # -- servers out of service ---------------------------------------------------------------------------------------

    async def _probe(self, server: RoutedServer) -> None:
        """Takes a server into service if it generates with the right weights of the right model."""
        try:
            await self._examine(server)
        except (ServerError, ModelError) as error:
            self._pool.take_out(server, str(error))
        else:
            self._pool.put_in(server)

    async def _examine(self, server: RoutedServer) -> None:
        client, limit = server.client, self._probe_timeout_s
        server_info = await client.fetch("/server_info", timeout_s=limit)
        model_info = await client.fetch("/model_info", timeout_s=limit)
        # In a thread: the vocabulary of a large model takes a while to read, and turns on other servers go on.
        model = await asyncio.to_thread(ServedModel.from_answers, model_info, server_info)
        await asyncio.to_thread(model.check, client.url, self.vocab_size, self._tokens, self._model_folder)
        if model.context_length < self.context_length:
            raise ModelError(f"{client.url} has a context of {model.context_length}, expected {self.context_length}")
        held, version, callback = self._held(server, model.weights), self.version, self.on_return
        if held != version and callback is not None:
            try:
                await asyncio.to_thread(callback, client, version)
            except Exception as error:
                raise ServerError(f"{client.url} could not be given version {version}: {error}") from error
            held = self._held(server, (await client.fetch("/model_info", timeout_s=limit)).get("weight_version"))
        if held != self.version:
            raise ServerError(self._stale(server, held))
        greedy = SamplingParams(max_new_tokens=1, temperature=0)
        fields = encode_sampling(greedy, vocab_size=self.vocab_size, max_support=self._max_support)
        body = encode_request(_PROBE_PROMPT, uuid.uuid4().hex, {**fields, "max_new_tokens": 1}, with_support=False)
        answer = await client.generate(body, timeout_s=limit)
        parse_answer(answer, greedy, url=client.url, vocab_size=self.vocab_size)

    def _stale(self, server: RoutedServer, held: int) -> str:
        if held == UNKNOWN_VERSION:
            of = "of this run" if server.pinned is None else "that it held at first"
            return (
                f"{server.client.url} holds other weights, expected version {self.version} {of}; if another run feeds "
                "it too, give each its own servers"
            )
        return f"{server.client.url} holds the weights of version {held}, expected {self.version}"

    def _held(self, server: RoutedServer, name: str | None) -> int:
        """The version that a server's name for weights stands for; `UNKNOWN_VERSION` of those that may not sample."""
        if server.pinned is not None:
            return self.version if name == server.pinned else UNKNOWN_VERSION
        return parse_version(name, self._run_id)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)
