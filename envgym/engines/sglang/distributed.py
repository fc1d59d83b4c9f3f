"""Weights through a process group of their own: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.flat_bucket import flat_size, flatten
from envgym.engines.sglang.receiver import NamedTensors, OnFailure, SGLangReceiver
from envgym.errors import ServerError

Backend = Literal["gloo", "nccl"]
_JOIN_TIMEOUT_S = 60.0


class DistributedReceiver(SGLangReceiver):
    """Broadcasts each bucket in a group of this process and the server's ranks.

    The group has nothing to do with the learner's: it meets at an address and port that this process picks, so any rank
    of a torchrun job may be its source. It is made at the first update and kept.

    Args:
        client: The server.
        backend: None takes NCCL for a server on GPUs and gloo for one on the CPU.
        address: Where the server reaches this machine; None finds it out from the route to the server.
        on_failure: See `SGLangReceiver`.
        dtype: See `SGLangReceiver`.
    """

    def __init__(
        self,
        client: SGLangClient,
        *,
        backend: Backend | None = None,
        address: str | None = None,
        on_failure: OnFailure | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(client, on_failure=on_failure, dtype=dtype)
        self._backend = backend
        self._address = address
        self._group: WeightsGroup | None = None

    def _open(self) -> None:
        if self._group is None:  # before the pause, since it takes a while
            served = self.served()
            backend = self._backend or ("nccl" if served.on_gpu else "gloo")
            address = self._address or address_towards(self.client.url)
            self._group = WeightsGroup(self.client, num_ranks=served.num_ranks, backend=backend, address=address)
        super()._open()

    def _send(self, tensors: NamedTensors) -> None:
        assert self._group is not None
        flat = flatten(tensors, torch.empty(flat_size(tensors), dtype=torch.uint8, device=self._group.device))
        self._about_to_change()
        sent = self._group.broadcast(flat)
        self.client.update_weights_from_group(
            [name for name, _ in tensors],
            [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            [tuple(tensor.shape) for _, tensor in tensors],
            group=self._group.name,
            load_format="flattened_bucket",
        )
        sent.wait()  # over already, since the server has loaded what was sent

    def _abandon(self) -> None:
        # A broadcast that was not taken would be taken for the next one.
        group, self._group = self._group, None
        if group is not None:
            group.close()


class WeightsGroup:
    """A process group of this process, rank 0, and the tensor-parallel ranks of one server.

    It meets the server's side, `torch.distributed`'s own way to make a group by name, in the store: the keys must be
    prefixed as there.

    Args:
        client: The server; asked to join.
        num_ranks: Its tensor-parallel ranks.
        backend: "gloo" or "nccl".
        address: Where the server reaches this machine.

    Raises:
        ServerError: The server did not join.
    """

    def __init__(self, client: SGLangClient, *, num_ranks: int, backend: Backend, address: str) -> None:
        self.name = f"envgym-{uuid.uuid4().hex[:12]}"
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._client = client
        self._store = dist.TCPStore(
            address, 0, None, True, timedelta(seconds=client.control_timeout_s), wait_for_workers=False
        )
        self._members: Any = None
        self._error: Exception | None = None
        # Both sides wait for each other: this one in a thread, which ends by itself if the other never comes.
        joining = threading.Thread(target=self._join, args=(num_ranks + 1, backend), daemon=True)
        joining.start()
        client.init_weights_group(
            address=address,
            port=self._store.port,
            rank_offset=1,
            world_size=num_ranks + 1,
            name=self.name,
            backend=backend,
        )
        joining.join(_JOIN_TIMEOUT_S)
        if self._members is None:
            raise ServerError(
                f"no {backend} group with {client.url} at {address}: {self._error or 'it takes too long'}"
            )

    def broadcast(self, tensor: Tensor) -> Any:
        """Starts sending a tensor on the group's device; wait for what is returned before it is written again."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self._members.broadcast([tensor], options)

    def close(self) -> None:
        """Leaves the group and has the server leave it, which ends a broadcast that nobody takes."""
        with contextlib.suppress(ServerError):  # it may be gone, and its connections with it
            self._client.destroy_weights_group(self.name)
        # In a thread, the last reference included: a group waits for a broadcast that a hanging server did not take.
        members, self._members = [self._members], None
        threading.Thread(target=lambda: members.pop().abort(), daemon=True).start()

    def _join(self, size: int, backend: Backend) -> None:
        timeout = timedelta(seconds=_JOIN_TIMEOUT_S)
        device = "cuda" if backend == "nccl" else "cpu"
        store = dist.PrefixStore(self.name, self._store)
        store = dist.PrefixStore(f"{device}/", dist.PrefixStore(f"{self.name}/", store))
        try:
            if backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timedelta(seconds=self._client.control_timeout_s)
                self._members = dist.ProcessGroupNCCL(store, 0, size, options)
            else:
                self._members = dist.ProcessGroupGloo(store, 0, size, timeout)
        except Exception as error:
            self._error = error


def address_towards(url: str) -> str:
    """The address of this machine on the route to a server."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise ServerError(f"no route to {url}: {error}") from error
