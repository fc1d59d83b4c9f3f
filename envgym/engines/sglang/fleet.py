"""The SGLang servers of a run, seen from one rank: started or attached to, given weights, started again if they die."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from envgym.config import SGLangPolicyConfig
from envgym.engines.base import Engine, EngineSetup
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.engines.sglang.server import SGLangServer, free_port
from envgym.engines.sglang.transports import Transport, make_transport
from envgym.engines.sglang.weights import (
    ServerWeights,
    check_servers,
    configured_shapes,
    servers_of_rank,
    sync_servers,
)
from envgym.errors import EnvGymError, ServerError, WeightSyncError

MAX_RESTARTS = 8
"""How often a server that died is started again in one run; one that dies more often will not recover by itself."""

LONGEST_PAUSE_S = 30.0
"""Longest pause before a restart; the first is one second, and each further one twice as long."""

_WATCH_S = 1.0
_SYNC_ATTEMPTS = 3
_log = logging.getLogger(__name__)


class SGLangEngine(Engine):
    """What `policy.kind = "sglang"` means on one rank.

    Where the configuration names servers, rank r samples from servers r, r + num_ranks, ...; a rank for which none is
    left samples from all of them. Where it names none, each rank starts a server of its own, and starts it again when
    it dies. A server that comes back gets the present weights: at once in a run of one rank that collects and trains in
    turn, with the next sync otherwise.

    Args:
        config: The section `policy` of the configuration.
        setup: Servers that are started load its model; they measure how much memory is free, so the learner is not yet
            on a device that they share.

    Raises:
        MissingDependencyError: There is no SGLang to start.
        ServerError: A server does not start, or does not answer.
        ModelError: A server serves another model.
        WeightSyncError: A server's parameters are not those of the model.
        ValueError: The servers cannot be placed as configured.
    """

    recoverable = True

    def __init__(self, config: SGLangPolicyConfig, setup: EngineSetup) -> None:
        self._config, self._setup = config, setup
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self.shares_memory = config.colocated and setup.device.type == "cuda"
        self._closing = threading.Event()
        self._server: SGLangServer | None = None
        self._transport: Transport | None = None
        self._given: tuple[nn.Module, int] | None = None
        """What was synced last: the module and its version."""
        self._feeding = threading.Lock()
        try:
            # Of this process, not of the run: what came after the checkpoint that a run goes on from must not sample.
            (run_id, *_) = _gathered(uuid.uuid4().hex[:12])
            urls, own = list(config.urls), list(config.urls[self._rank :: self._num_ranks])
            if not urls:
                own = [self._start()]
                urls = _gathered(own[0])
            clients = [SGLangClient(url, generate_timeout_s=config.generate_timeout_s) for url in urls]
            mine = [client for client in clients if client.url in own]
            # At once only where nothing else uses the learner's weights meanwhile, and no other rank has to take part.
            alone = self._num_ranks == 1 and not setup.max_policy_lag
            self.policy: SGLangPolicy = SGLangPolicy(
                mine or clients,
                model_folder=setup.model_dir,
                run_id=run_id,
                recovery_timeout_s=config.recovery_timeout_s,
                on_return=self._refill if alone else None,
            )
            self._transport = make_transport(
                config.weight_sync,
                folder=setup.folder / "weights",
                model_folder=setup.model_dir,
                same_machine=self._server is not None,
            )
            self._fed = servers_of_rank(
                clients, self._transport, rank=self._rank, num_ranks=self._num_ranks, run_id=run_id
            )
            check_servers(configured_shapes(setup.model_dir), self._fed)
        except BaseException:
            self.close()
            raise
        if self._server is not None:
            threading.Thread(target=self._watch, name="envgym-servers", daemon=True).start()

    def close(self) -> None:
        """Stops what was started, and removes weights on their way by disk."""
        self._closing.set()
        if self._server is not None:
            self._server.stop()
        if self._transport is not None:
            self._transport.close()

    # -- weights ------------------------------------------------------------------------------------------------------

    def sync(self, module: nn.Module, version: int) -> None:
        """Gives the servers the weights of a module; see `Engine.sync`.

        A server that cannot take them is out of service until a later sync, as long as every rank has another one to
        sample from.
        """
        problem: WeightSyncError | None = None
        for attempt in range(_SYNC_ATTEMPTS):
            if attempt:
                self._closing.wait(self._config.recovery_timeout_s / _SYNC_ATTEMPTS)  # one may be starting again
            problem = None
            with self._feeding:
                self._given = module, version
                try:
                    sync_servers(module, self._fed, version=version)
                except WeightSyncError as error:
                    problem = error
                finally:
                    self.policy.weights_updated(version)
            if self._every_rank_is_served():
                break
        else:
            reason = problem or "; ".join(self.policy.statistics().out_of_service.values()) or "see the other ranks"
            raise WeightSyncError(f"a rank has no server with the weights of version {version}: {reason}")
        if problem is not None:
            _log.warning("Version %d did not reach every policy server: %s", version, problem)

    def sleep(self) -> None:
        """Takes the memory of the servers that share the rank's GPU."""
        self._each(ServerWeights.sleep)

    def wake(self) -> None:
        """Gives them that of their weights; the cache's comes with the sync."""
        self._each(ServerWeights.wake)

    def _each(self, action: Callable[[ServerWeights], None]) -> None:
        """Does something about the memory of servers that share it; one that fails is left to the next sync."""
        for server in self._fed if self.shares_memory else ():
            try:
                action(server)
            except ServerError as error:
                server.forget()
                _log.warning("%s did not give or take its memory: %s", server.client.url, error)

    def _refill(self, client: SGLangClient, version: int) -> None:
        """Gives one server that came back the present weights."""
        with self._feeding:
            if self._given is None or self._given[1] != version:
                raise WeightSyncError(f"there are no weights of version {version} to give")
            module, _ = self._given
            (server,) = (server for server in self._fed if server.client is client)
            server.forget()
            sync_servers(module, [server], version=version)

    def _every_rank_is_served(self) -> bool:
        """The same answer on every rank."""
        unserved = len(self.policy.statistics().out_of_service) == len(self.policy.clients)
        total = torch.tensor(float(unserved), device=self._setup.device)
        dist.all_reduce(total)
        return not total.item()

    # -- the server that was started ----------------------------------------------------------------------------------

    def _start(self) -> str:
        """Starts this rank's server and returns its address."""
        config, setup = self._config, self._setup
        device = setup.device
        if device.type == "cuda" and not config.colocated:
            raise ValueError(
                "a server that the run starts shares the rank's GPU; set policy.colocated, or start servers on other "
                "GPUs with `envgym serve` and name them in policy.urls"
            )
        dtype = config.dtype or setup.dtype
        self._server = SGLangServer(
            setup.model_dir,
            "cuda" if device.type == "cuda" else "cpu",
            port=free_port(),
            dtype="float32" if dtype == "float64" else dtype,
            mem_fraction=config.mem_fraction,
            max_total_tokens=config.max_total_tokens,
            max_running_requests=setup.concurrency * (1 + setup.max_policy_lag),
            memory_saver=self.shares_memory,
            tokenizer=False,
            seed=setup.seed + self._rank,
            log_path=setup.folder / f"rank{self._rank}.log",
            startup_timeout_s=config.startup_timeout_s,
        )
        self._server.start()
        return self._server.url

    def _watch(self) -> None:
        """Starts the server again when it has died."""
        server = self._server
        assert server is not None
        for restart in range(1, MAX_RESTARTS + 1):
            while server.running:
                if self._closing.wait(_WATCH_S):
                    return
            # What is left of the old one may hold its port for a while, and what killed it may not be over.
            if self._closing.wait(min(_WATCH_S * 2 ** (restart - 1), LONGEST_PAUSE_S)):
                return
            _log.warning(
                "The policy server of rank %d died (its log: %s); starting it again, %d of %d times",
                *(self._rank, server.log_path, restart, MAX_RESTARTS),
            )
            server.log_path = self._setup.folder / f"rank{self._rank}-{restart}.log"
            try:
                server.start()
            except EnvGymError as error:
                _log.warning("The policy server of rank %d did not start again: %s", self._rank, error)
        _log.error("The policy server of rank %d died too often and stays down", self._rank)


def _gathered(text: str) -> list[str]:
    """What each rank says, by rank."""
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts
