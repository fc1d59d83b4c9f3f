"""Which rank feeds which server, and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.disk import DiskReceiver, WeightsFolders
from envgym.engines.sglang.distributed import Backend, DistributedReceiver
from envgym.engines.sglang.receiver import OnFailure, SGLangReceiver
from envgym.engines.sglang.tensors import TensorReceiver

Way = Literal["tensors", "distributed", "disk"]


def make_receivers(
    clients: Sequence[SGLangClient],
    way: Way,
    *,
    rank: int,
    num_ranks: int,
    on_failure: OnFailure | None = None,
    dtype: torch.dtype | None = None,
    same_machine: bool = False,
    backend: Backend | None = None,
    folder: Path | None = None,
    model_folder: Path | None = None,
    lineage: str = "",
) -> list[SGLangReceiver]:
    """The receivers of this rank, for `push_weights`.

    Server k is fed by rank k modulo the number of ranks, so that the work is shared. By way of the disk rank 0 feeds
    all, since the files are written once.

    Args:
        clients: All servers, in the same order on every rank.
        way: "tensors" over HTTP, "distributed" through a process group, "disk" as files.
        rank: This rank.
        num_ranks: Number of ranks.
        on_failure: Called with a server that an update has left unfit for use, on the rank that feeds it.
        dtype: Type of the servers' weights; what each was started with when None.
        same_machine: tensors: whether servers on GPUs run beside this process; see `TensorReceiver`.
        backend: distributed: "gloo" or "nccl"; by the server's device when None.
        folder: disk: where the versions are written; the servers see it under the same path.
        model_folder: disk: the folder of the model that is trained, for its configuration.
        lineage: Whose weights they are given; see `version_name`.

    Raises:
        ValueError: The way is unknown, or the disk way lacks its folders.
    """
    receivers: list[SGLangReceiver]
    mine = [client for place, client in enumerate(clients) if place % num_ranks == rank]
    if way == "disk":
        if folder is None or model_folder is None:
            raise ValueError("way 'disk' needs folder (where to write) and model_folder (whose config.json is copied)")
        if rank != 0 or not clients:
            return []
        shared = WeightsFolders(folder, model_folder=model_folder)
        receivers = [DiskReceiver(client, shared, on_failure=on_failure, dtype=dtype) for client in clients]
    elif way == "tensors":
        receivers = [
            TensorReceiver(client, same_machine=same_machine, on_failure=on_failure, dtype=dtype) for client in mine
        ]
    elif way == "distributed":
        receivers = [
            DistributedReceiver(client, backend=backend, on_failure=on_failure, dtype=dtype) for client in mine
        ]
    else:
        raise ValueError(f"the way of weight sync is 'tensors', 'distributed' or 'disk', got '{way}'")
    for receiver in receivers:
        receiver.lineage = lineage
    return receivers
