"""Weights over HTTP, bucket by bucket: inside the request, or as handles of GPU memory."""

from __future__ import annotations

import base64
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches ForkingPickler to write handles

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.flat_bucket import flat_size, flatten, layout
from envgym.engines.sglang.receiver import NamedTensors, OnFailure, SGLangReceiver


class TensorReceiver(SGLangReceiver):
    """Sends each bucket as one flat array in an HTTP request.

    Works for every server that can be reached, one on the other side of a network too. Beside a server on GPUs only the
    handle of the bucket's memory need travel.

    Args:
        client: The server.
        same_machine: Whether the server runs on this machine, numbers the GPUs as this process does, and may open its
            memory (CUDA IPC). A server that cannot dies of it. Of no effect for tensors or servers on the CPU.
        on_failure: See `SGLangReceiver`.
        dtype: See `SGLangReceiver`.
    """

    def __init__(
        self,
        client: SGLangClient,
        *,
        same_machine: bool = False,
        on_failure: OnFailure | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(client, on_failure=on_failure, dtype=dtype)
        self.same_machine = same_machine

    def _send(self, tensors: NamedTensors) -> None:
        served = self.served()
        by_handle = self.same_machine and served.on_gpu and tensors[0][1].is_cuda
        device = tensors[0][1].device if by_handle else torch.device("cpu")
        flat = flatten(tensors, torch.empty(flat_size(tensors), dtype=torch.uint8, device=device))
        content = {"flattened_tensor": flat, "metadata": layout(tensors)}
        if by_handle:
            # Each rank opens a handle of its own, since handles count who holds them.
            payloads = [_pickled(ForkingPickler, content) for _ in range(served.num_ranks)]
            torch.cuda.synchronize(device)  # the other process reads without regard to this one's streams
        else:
            payloads = [_pickled(pickle.Pickler, content)] * served.num_ranks
        self._about_to_change()
        self.client.update_weights_from_tensors(payloads, load_format="flattened_bucket")


def _pickled(pickler: Any, content: Any) -> str:
    stream = io.BytesIO()
    pickler(stream).dump(content)
    return base64.b64encode(stream.getbuffer()).decode()
