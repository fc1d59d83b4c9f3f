"""The SGLang servers of a run, seen from one rank: started or attached to, given weights, started again if they die."""

from __future__ import annotations

import logging
import threading
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from envgym.config import SGLangPolicyConfig, TrainConfig
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.engines.sglang.receiver import SGLangReceiver
from envgym.engines.sglang.receivers import make_receivers
from envgym.engines.sglang.server import SGLangServer, free_port
from envgym.errors import EnvGymError, WeightSyncError
from envgym.learner.learner import Learner
from envgym.learner.metrics import all_reduce_sum
from envgym.weights import check_weights, push_weights

MAX_RESTARTS = 8
"""How often a server that died is started again in one run; one that dies more often will not recover by itself."""

LONGEST_PAUSE_S = 30.0
"""Longest pause before a restart; the first is one second, and each further one twice as long."""

SERVERS = "servers"
"""Folder in the run folder for the logs of servers and weights on their way by disk."""

_WATCH_S = 1.0
_SYNC_ATTEMPTS = 3
_CPU = torch.device("cpu")
_log = logging.getLogger(__name__)


class PolicyServers:
    """What `policy.kind = "sglang"` means on one rank. Making, syncing and closing are collectives of all ranks.

    Where the configuration names servers, rank r samples from servers r, r + num_ranks, ...; a rank for which none is
    left samples from all of them. Where it names none, each rank starts a server of its own, and starts it again when
    it dies. A server that comes back gets the present weights: at once in a run of one rank that collects and trains in
    turn, with the next sync otherwise.

    Args:
        config: The run's configuration.
        model_dir: The model that is trained; servers that are started load it.
        device: Of this rank.

    Attributes:
        policy: What this rank samples from.

    Raises:
        MissingDependencyError: There is no SGLang to start.
        ServerError: A server does not start, or does not answer.
        ModelError: A server serves another model.
        ValueError: The servers cannot be placed as configured.
    """

    def __init__(self, config: TrainConfig, model_dir: Path, *, device: torch.device) -> None:
        assert isinstance(config.policy, SGLangPolicyConfig)
        self._settings = config.policy
        self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()
        self._folder, self._model_dir = config.run_dir / SERVERS, model_dir
        self._device = device
        self._shares_memory = self._settings.colocated and device.type == "cuda"
        self._num_folders = 0
        self._learner: Learner | None = None
        self._closing = threading.Event()
        self._server: SGLangServer | None = None
        self._receivers: list[SGLangReceiver] = []
        try:
            # Of this process, not of the run: what came after the checkpoint that a run goes on from must not sample.
            (self._lineage, *_) = _gathered(uuid.uuid4().hex[:12])
            urls, own = list(self._settings.urls), list(self._settings.urls[self._rank :: self._num_ranks])
            if not urls:
                own = [self._start(config, device)]
                urls = _gathered(own[0])
            self._clients = [self._client(url) for url in urls]
            mine = [client for client in self._clients if client.url in own]
            # At once only where nothing else uses the learner's weights meanwhile, and no other rank has to take part.
            alone = self._num_ranks == 1 and not config.rollout.max_policy_lag
            self.policy = SGLangPolicy(
                mine or self._clients,
                model_folder=model_dir,
                lineage=self._lineage,
                recovery_timeout_s=self._settings.recovery_timeout_s,
                on_return=self._refill if alone else None,
            )
            self._receivers = self._make_receivers(self._clients, rank=self._rank, num_ranks=self._num_ranks)
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

    def check(self, learner: Learner) -> None:
        """Whether the servers can take the learner's weights at all; a collective.

        Raises:
            WeightSyncError: One of them serves another architecture.
        """
        check_weights(learner.actor.lm, self._receivers)

    def sync(self, learner: Learner, version: int) -> None:
        """Gives the servers the learner's present weights; servers that slept wake up.

        A server that cannot take them is out of service until a later sync, as long as every rank has another one to
        sample from.

        Raises:
            WeightSyncError: The parameters do not fit, or a rank is left without a server.
        """
        self._learner = learner
        if self._shares_memory:
            learner.move_to(_CPU, but_actor=True)
        problem = None
        for attempt in range(_SYNC_ATTEMPTS):
            if attempt:
                self._closing.wait(self._settings.recovery_timeout_s / _SYNC_ATTEMPTS)  # one may be starting again
            problem = self._push(learner, version)
            if self._every_rank_is_served():
                break
        else:
            reason = problem or "; ".join(self.policy.statistics().out_of_service.values()) or "see the other ranks"
            raise WeightSyncError(f"a rank has no server with the weights of version {version}: {reason}")
        if problem is not None:
            _log.warning("Version %d did not reach every policy server: %s", version, problem)
        if self._shares_memory:
            learner.move_to(_CPU)

    def sleep(self, learner: Learner) -> None:
        """Where servers and learner share a GPU: takes the servers' memory and gives it to the learner."""
        if not self._shares_memory:
            return
        for receiver in self._receivers:
            receiver.release_memory()
        learner.move_to(learner.device)

    def _push(self, learner: Learner, version: int) -> WeightSyncError | None:
        spent = [receiver for receiver in self._receivers if receiver.out_of_use]
        for receiver in spent:
            receiver.close()
        self._receivers = [receiver for receiver in self._receivers if not receiver.out_of_use]
        self._receivers += self._make_receivers([receiver.client for receiver in spent])
        reachable = [receiver for receiver in self._receivers if receiver.client.is_healthy()]
        try:
            push_weights(learner.actor.lm, reachable, version=version)
        except WeightSyncError as error:
            return error
        finally:
            self.policy.weights_updated(version)
        return None

    def _refill(self, client: SGLangClient, version: int) -> None:
        """Gives one server that came back the present weights."""
        if self._learner is None:
            raise WeightSyncError("there are no weights to give yet")
        receivers = self._make_receivers([client])
        try:
            push_weights(self._learner.actor.lm, receivers, version=version)
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
            self._settings.weight_sync,
            rank=rank,
            num_ranks=num_ranks,
            same_machine=self._server is not None,
            folder=self._folder / f"weights-{self._num_folders}",  # receivers made apart do not share files
            model_folder=self._model_dir,
            lineage=self._lineage,
        )

    def _every_rank_is_served(self) -> bool:
        """The same answer on every rank."""
        unserved = len(self.policy.statistics().out_of_service) == len(self.policy.clients)
        return not all_reduce_sum(torch.tensor(float(unserved), device=self._device)).item()

    # -- the server that was started ----------------------------------------------------------------------------------

    def _client(self, url: str) -> SGLangClient:
        return SGLangClient(url, generate_timeout_s=self._settings.generate_timeout_s)

    def _start(self, config: TrainConfig, device: torch.device) -> str:
        """Starts this rank's server and returns its address."""
        settings = self._settings
        if device.type == "cuda" and not settings.colocated:
            raise ValueError(
                "a server that the run starts shares the rank's GPU; set policy.colocated, or start servers on other "
                "GPUs with `envgym serve` and name them in policy.urls"
            )
        dtype = settings.dtype or config.dtype
        self._server = SGLangServer(
            self._model_dir,
            "cuda" if device.type == "cuda" else "cpu",
            port=free_port(),
            dtype="float32" if dtype == "float64" else dtype,
            mem_fraction=settings.mem_fraction,
            max_total_tokens=settings.max_total_tokens,
            max_running_requests=config.rollout.concurrency * (1 + config.rollout.max_policy_lag),
            memory_saver=settings.colocated and device.type == "cuda",
            tokenizer=False,
            seed=config.seed + self._rank,
            log_path=self._folder / f"rank{self._rank}.log",
            startup_timeout_s=settings.startup_timeout_s,
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
            server.log_path = self._folder / f"rank{self._rank}-{restart}.log"
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
