"""The ways that weights travel to SGLang servers: over HTTP, through a process group of their own, and as files."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import shutil
import socket
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
import torch.multiprocessing  # teaches ForkingPickler to write handles
from torch import Tensor

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.served_model import INDEX
from envgym.errors import ServerError, ServerUnreachableError, WeightSyncError, put_in_place

Way = Literal["tensors", "distributed", "disk"]
NamedTensors = Sequence[tuple[str, Tensor]]

_JOIN_TIMEOUT_S = 60.0
_PARTIAL = ".partial"
_KEPT = ("config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """What a server said about the weights it holds.

    Attributes:
        client: The server.
        names: Its own names of its parameters.
        shapes: Hugging Face names and shapes, where the server's model folder can be read from here; else empty.
        dtype: Type of its weights.
        num_ranks: Size of its tensor parallelism.
        on_gpu: Whether it serves on a GPU.
        memory_saver: Whether it can give its memory up.
    """

    client: SGLangClient
    names: frozenset[str]
    shapes: dict[str, tuple[int, ...]]
    dtype: torch.dtype
    num_ranks: int
    on_gpu: bool
    memory_saver: bool


class Transport:
    """Carries the updates of one rank to all servers that it feeds.

    Of each sync: `begin_sync`; for each server `open`, then `send` for each bucket, then `load`.

    Attributes:
        loads_buckets: Whether a server loads each bucket as it is sent, in a session; else all at once in `load`.
    """

    loads_buckets = True

    def begin_sync(self) -> None:
        """Says that what is sent from now on are other weights."""

    def open(self, server: ServedWeights) -> None:
        """Gets ready to send to a server, which may still be sampling.

        Raises:
            ServerError: The server does not take part.
        """

    def send(self, server: ServedWeights, tensors: NamedTensors) -> None:
        """Hands on tensors of the server's type, on whatever device they are.

        Raises:
            ServerError: The server did not take them.
        """
        raise NotImplementedError

    def load(self, server: ServedWeights, version: int) -> None:
        """Has a server load what was sent, where it has not."""

    def abandon(self, server: ServedWeights) -> None:
        """Frees what is kept for a server, for example after an update that failed."""

    def close(self) -> None:
        """Frees everything."""


def make_transport(way: Way, *, folder: Path, model_folder: Path, same_machine: bool = False) -> Transport:
    """The transport of this rank.

    Args:
        way: "tensors" over HTTP, "distributed" through a process group, "disk" as files.
        folder: disk: where the versions are written; the servers see it under the same path.
        model_folder: disk: the folder of the model that is trained, for its configuration.
        same_machine: tensors: whether servers on GPUs run beside this process; see `TensorTransport`.
    """
    if way == "disk":
        return DiskTransport(folder, model_folder=model_folder)
    return DistributedTransport() if way == "distributed" else TensorTransport(same_machine=same_machine)


# -- over HTTP --------------------------------------------------------------------------------------------------------


class TensorTransport(Transport):
    """Sends each bucket as one flat array in an HTTP request.

    Works for every server that can be reached, one on the other side of a network too. Beside a server on GPUs only the
    handle of the bucket's memory need travel.

    Args:
        same_machine: Whether servers run on this machine, number the GPUs as this process does, and may open its memory
            (CUDA IPC). A server that cannot dies of it. Of no effect for tensors or servers on the CPU.
    """

    def __init__(self, *, same_machine: bool = False) -> None:
        self._same_machine = same_machine

    def send(self, server: ServedWeights, tensors: NamedTensors) -> None:
        by_handle = self._same_machine and server.on_gpu and tensors[0][1].is_cuda
        device = tensors[0][1].device if by_handle else torch.device("cpu")
        content = dict(zip(("flattened_tensor", "metadata"), flatten(tensors, device), strict=True))
        if by_handle:
            # Each rank opens a handle of its own, since handles count who holds them.
            payloads = [_pickled(ForkingPickler, content) for _ in range(server.num_ranks)]
            torch.cuda.synchronize(device)  # the other process reads without regard to this one's streams
        else:
            payloads = [_pickled(pickle.Pickler, content)] * server.num_ranks
        server.client.post(
            "/update_weights_from_tensor",
            serialized_named_tensors=payloads,
            load_format="flattened_bucket",
            flush_cache=False,
        )


def _pickled(pickler: Any, content: Any) -> str:
    stream = io.BytesIO()
    pickler(stream).dump(content)
    return base64.b64encode(stream.getbuffer()).decode()


def flatten(tensors: NamedTensors, device: torch.device) -> tuple[Tensor, list[SimpleNamespace]]:
    """The bytes of tensors of one type one after the other, uint8 on a device, and where each lies in them.

    This is SGLang's `flattened_bucket` format; it reads the namespaces like its own class.
    """
    flat = torch.empty(sum(tensor.nbytes for _, tensor in tensors), dtype=torch.uint8, device=device)
    described, start = [], 0
    for name, tensor in tensors:
        end = start + tensor.nbytes
        flat[start:end].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
        place = {"start_idx": start, "end_idx": end, "numel": tensor.nbytes}
        described.append(SimpleNamespace(name=name, shape=tuple(tensor.shape), dtype=tensor.dtype, **place))
        start = end
    return flat, described


# -- through a process group ------------------------------------------------------------------------------------------


class DistributedTransport(Transport):
    """Broadcasts each bucket in a group of this process and one server's ranks: gloo on a CPU, NCCL between GPUs.

    The groups have nothing to do with the learner's: each meets at an address and port that this process picks, so any
    rank of a torchrun job may be its source. They are made at the first update and kept.
    """

    def __init__(self) -> None:
        self._groups: dict[str, WeightsGroup] = {}

    def open(self, server: ServedWeights) -> None:
        if server.client.url not in self._groups:
            self._groups[server.client.url] = WeightsGroup(
                server.client, num_ranks=server.num_ranks, backend="nccl" if server.on_gpu else "gloo"
            )

    def send(self, server: ServedWeights, tensors: NamedTensors) -> None:
        group = self._groups[server.client.url]
        sent = group.broadcast(flatten(tensors, group.device)[0])
        server.client.post(
            "/update_weights_from_distributed",
            names=[name for name, _ in tensors],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
            shapes=[list(tensor.shape) for _, tensor in tensors],
            group_name=group.name,
            load_format="flattened_bucket",
            flush_cache=False,
        )
        sent.wait()  # over already, since the server has loaded what was sent

    def abandon(self, server: ServedWeights) -> None:
        # A broadcast that was not taken would be taken for the next one.
        if (group := self._groups.pop(server.client.url, None)) is not None:
            group.close()

    def close(self) -> None:
        while self._groups:
            self._groups.popitem()[1].close()


class WeightsGroup:
    """A process group of this process, rank 0, and the tensor-parallel ranks of one server.

    It meets the server's side, `torch.distributed`'s own way to make a group by name, in the store: the keys must be
    prefixed as there.

    Args:
        client: The server; asked to join.
        num_ranks: Its tensor-parallel ranks.
        backend: "gloo" or "nccl".

    Raises:
        ServerError: The server did not join.
    """

    def __init__(self, client: SGLangClient, *, num_ranks: int, backend: Literal["gloo", "nccl"]) -> None:
        self.name = f"envgym-{uuid.uuid4().hex[:12]}"
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._client = client
        address = address_towards(client.url)
        self._store = dist.TCPStore(
            address, 0, None, True, timedelta(seconds=client.control_timeout_s), wait_for_workers=False
        )
        self._members: Any = None
        self._error: Exception | None = None
        # Both sides wait for each other: this one in a thread, which ends by itself if the other never comes.
        joining = threading.Thread(target=self._join, args=(num_ranks + 1, backend), daemon=True)
        joining.start()
        client.post(
            "/init_weights_update_group",
            master_address=address,
            master_port=self._store.port,
            rank_offset=1,
            world_size=num_ranks + 1,
            group_name=self.name,
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
            self._client.post("/destroy_weights_update_group", group_name=self.name)
        # In a thread, the last reference included: a group waits for a broadcast that a hanging server did not take.
        members, self._members = [self._members], None
        threading.Thread(target=lambda: members.pop().abort(), daemon=True).start()

    def _join(self, size: int, backend: str) -> None:
        device = "cuda" if backend == "nccl" else "cpu"
        store = dist.PrefixStore(self.name, self._store)
        store = dist.PrefixStore(f"{device}/", dist.PrefixStore(f"{self.name}/", store))
        try:
            if backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timedelta(seconds=self._client.control_timeout_s)
                self._members = dist.ProcessGroupNCCL(store, 0, size, options)
            else:
                self._members = dist.ProcessGroupGloo(store, 0, size, timedelta(seconds=_JOIN_TIMEOUT_S))
        except Exception as error:
            self._error = error


def address_towards(url: str) -> str:
    """The address of this machine on the route to a server."""
    parts = urlsplit(url)
    try:
        places = socket.getaddrinfo(parts.hostname or "127.0.0.1", parts.port or 80, type=socket.SOCK_DGRAM)
        family, kind, _, _, target = places[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing
            return probe.getsockname()[0]
    except OSError as error:
        raise ServerError(f"no route to {url}: {error}") from error


# -- as files ---------------------------------------------------------------------------------------------------------


class DiskTransport(Transport):
    """Writes each version as a model folder, once for all servers, and has them load it.

    A server samples with the old weights until the folder is complete. The weights of the present version stay on the
    disk until `close`, which leaves the configuration: a server that loaded it names the folder as that of its model.

    Args:
        root: Made if needed; everything below it belongs to this object. The servers see it under the same path.
        model_folder: Where `config.json` is copied from.

    Raises:
        WeightSyncError: `model_folder` has no configuration.
    """

    loads_buckets = False

    def __init__(self, root: Path, *, model_folder: Path) -> None:
        if not (model_folder / "config.json").is_file():
            raise WeightSyncError(f"'{model_folder}' has no config.json; pass the folder of the model that is trained")
        self._root, self._model_folder = root, model_folder
        self._folders: dict[torch.dtype, WeightsFolder] = {}
        self._reading: set[SGLangClient] = set()
        """Servers that did not say that they have read the files."""

    def begin_sync(self) -> None:
        for folder in self._folders.values():
            folder.discard()

    def send(self, server: ServedWeights, tensors: NamedTensors) -> None:
        self._folder(server).write(tensors)

    def load(self, server: ServedWeights, version: int) -> None:
        folder = self._folder(server)
        path = folder.finish(version)
        self._reading.add(server.client)
        try:
            server.client.post("/update_weights_from_disk", model_path=str(path.resolve()), flush_cache=False)
        except ServerError as error:
            if not isinstance(error, ServerUnreachableError):
                self._reading.discard(server.client)
            raise
        self._reading.discard(server.client)
        folder.prune()

    def close(self) -> None:
        """Removes all weights, unless a server that is still there may be reading them."""
        for client in self._reading:
            with contextlib.suppress(ServerError):
                client.model_info(timeout_s=5.0)
                return
        for folder in self._folders.values():
            folder.remove_weights()

    def _folder(self, server: ServedWeights) -> WeightsFolder:
        name = str(server.dtype).removeprefix("torch.")
        return self._folders.setdefault(server.dtype, WeightsFolder(self._root / name, model_folder=self._model_folder))


class WeightsFolder:
    """Writes one model folder per version below `root`, whole or not at all, a file for each bucket."""

    def __init__(self, root: Path, *, model_folder: Path) -> None:
        self._root, self._partial, self._model_folder = root, root / _PARTIAL, model_folder
        self._files: dict[str, str] = {}
        self._num_bytes = 0
        self._finished: Path | None = None

    def discard(self) -> None:
        """Forgets a version that was begun; the next bucket begins another."""
        shutil.rmtree(self._partial, ignore_errors=True)
        self._files, self._num_bytes, self._finished = {}, 0, None

    def write(self, tensors: NamedTensors) -> None:
        """Writes a bucket, unless it is there already."""
        if tensors[0][0] in self._files:
            return
        from safetensors.torch import save_file

        self._partial.mkdir(parents=True, exist_ok=True)
        name = f"model-{len(set(self._files.values())) + 1:05d}.safetensors"
        save_file({key: tensor.cpu() for key, tensor in tensors}, self._partial / name, metadata={"format": "pt"})
        self._files |= {key: name for key, _ in tensors}
        self._num_bytes += sum(tensor.nbytes for _, tensor in tensors)

    def finish(self, version: int) -> Path:
        """Makes what was written the folder of a version, and returns it."""
        if self._finished is not None:
            return self._finished
        for name in _KEPT:
            if (self._model_folder / name).is_file():
                shutil.copyfile(self._model_folder / name, self._partial / name)
        index = {"metadata": {"total_size": self._num_bytes}, "weight_map": self._files}
        (self._partial / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        self._finished = self._root / f"{version:06d}"
        put_in_place(self._partial, self._finished)
        return self._finished

    def prune(self) -> None:
        """Removes every version but the newest; call it when a version is loaded."""
        for folder in self._root.iterdir():
            if folder != self._finished and folder.name.isdigit():
                shutil.rmtree(folder, ignore_errors=True)

    def remove_weights(self) -> None:
        """Removes all weights but not the configurations; call it when nobody reads them."""
        self.discard()
        for file in self._root.glob("*/*"):
            if file.parent.name.isdigit() and file.name not in _KEPT:
                file.unlink()
