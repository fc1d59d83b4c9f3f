"""The SGLang servers of a run, seen from one rank: started or attached to, given weights, started again if they die."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from envgym.config import SGLangPolicyConfig
from envgym.engines.base import Engine, EngineSetup
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.engines.sglang.receiver import SGLangReceiver, configured_shapes
from envgym.engines.sglang.receivers import make_receivers
from envgym.engines.sglang.server import SGLangServer, free_port
from envgym.errors import EnvGymError, WeightSyncError
from envgym.weights import check_weights, push_weights

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
        self._num_folders = 0
        self._module: nn.Module | None = None
        self._closing = threading.Event()
        self._server: SGLangServer | None = None
        self._receivers: list[SGLangReceiver] = []
        try:
            # Of this process, not of the run: what came after the checkpoint that a run goes on from must not sample.
            (self._lineage, *_) = _gathered(uuid.uuid4().hex[:12])
            urls, own = list(config.urls), list(config.urls[self._rank :: self._num_ranks])
            if not urls:
                own = [self._start()]
                urls = _gathered(own[0])
            self._clients = [SGLangClient(url, generate_timeout_s=config.generate_timeout_s) for url in urls]
            mine = [client for client in self._clients if client.url in own]
            # At once only where nothing else uses the learner's weights meanwhile, and no other rank has to take part.
            alone = self._num_ranks == 1 and not setup.max_policy_lag
            self.policy: SGLangPolicy = SGLangPolicy(
                mine or self._clients,
                model_folder=setup.model_dir,
                lineage=self._lineage,
                recovery_timeout_s=config.recovery_timeout_s,
                on_return=self._refill if alone else None,
            )
            self._receivers = self._make_receivers(self._clients, rank=self._rank, num_ranks=self._num_ranks)
            check_weights(configured_shapes(setup.model_dir), self._receivers)
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
        for receiver in self._receivers:
            receiver.close()

    # -- weights ------------------------------------------------------------------------------------------------------

    def sync(self, module: nn.Module, version: int) -> None:
        """Gives the servers the weights of a module; see `Engine.sync`.

        A server that cannot take them is out of service until a later sync, as long as every rank has another one to
        sample from.
        """
        self._module = module
        problem = None
        for attempt in range(_SYNC_ATTEMPTS):
            if attempt:
                self._closing.wait(self._config.recovery_timeout_s / _SYNC_ATTEMPTS)  # one may be starting again
            problem = self._push(module, version)
            if self._every_rank_is_served():
                break
        else:
            reason = problem or "; ".join(self.policy.statistics().out_of_service.values()) or "see the other ranks"
            raise WeightSyncError(f"a rank has no server with the weights of version {version}: {reason}")
        if problem is not None:
            _log.warning("Version %d did not reach every policy server: %s", version, problem)

    def sleep(self) -> None:
        """Takes the memory of the servers that share the rank's GPU."""
        if self.shares_memory:
            for receiver in self._receivers:
                receiver.release_memory()

    def _push(self, module: nn.Module, version: int) -> WeightSyncError | None:
        spent = [receiver for receiver in self._receivers if receiver.out_of_use]
        for receiver in spent:
            receiver.close()
        self._receivers = [receiver for receiver in self._receivers if not receiver.out_of_use]
        self._receivers += self._make_receivers([receiver.client for receiver in spent])
        reachable = [receiver for receiver in self._receivers if receiver.client.is_healthy()]
        try:
            push_weights(module, reachable, version=version)
        except WeightSyncError as error:
            return error
        finally:
            self.policy.weights_updated(version)
        return None

    def _refill(self, client: SGLangClient, version: int) -> None:
        """Gives one server that came back the present weights."""
        if self._module is None:
            raise WeightSyncError("there are no weights to give yet")
        receivers = self._make_receivers([client])
        try:
            push_weights(self._module, receivers, version=version)
        finally:
            for receiver in receivers:
                receiver.close()

    def _make_receivers(
        self, clients: list[SGLangClient], *, rank: int = 0, num_ranks: int = 1
    ) -> list[SGLangReceiver]:
        """Receivers for all of the servers, or for those that a rank feeds."""
        self._num_folders += 1
        return make_receivers(
            clients,
            self._config.weight_sync,
            rank=rank,
            num_ranks=num_ranks,
            same_machine=self._server is not None,
            folder=self._setup.folder / f"weights-{self._num_folders}",  # receivers made apart do not share files
            model_folder=self._setup.model_dir,
            lineage=self._lineage,
        )

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
