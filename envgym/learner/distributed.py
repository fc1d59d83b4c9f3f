"""The ranks: one process group, one mesh, FSDP2 over all of them, and the same code with a single process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


def pick_device(name: str) -> torch.device:
    """The device of this process: CUDA by local rank, or the CPU.

    Raises:
        ValueError: CUDA was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda' but torch sees no CUDA device; use device='cpu' or 'auto'")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(device: torch.device) -> Iterator[DeviceMesh]:
    """The mesh over all ranks. Joins torchrun's group where there is one, else makes a group of this process alone.

    A group that was already initialised is used and left as it is.
    """
    ours = not dist.is_initialized()
    if ours:
        backend = "nccl" if device.type == "cuda" else "gloo"
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend, timeout=timedelta(minutes=30))
        else:
            dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    try:
        yield init_device_mesh(device.type, (dist.get_world_size(),))
    finally:
        if ours:
            dist.destroy_process_group()


def shard(module: M, layers: nn.ModuleList, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None) -> M:
    """Shards the parameters of a module over the mesh, each decoder layer as a unit and the rest as one.

    Args:
        module: On the mesh's device, with equal parameters on every rank.
        layers: Its decoder layers.
        mesh: All ranks.
        compute_dtype: Type of the arithmetic; weights, gradients and their reduction keep the parameters' type. None
            computes in that type too.
    """
    precision = MixedPrecisionPolicy()
    if compute_dtype is not None:
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            # Losses carry global denominators, so gradients are summed over the ranks, not averaged.
            # A plain sum, since gloo knows no pre-multiplied one.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
    return module


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on every rank; a collective."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assign(parameter: Tensor, whole: Tensor) -> None:
    """Sets a (sharded) parameter to a tensor that every rank holds whole; a collective."""
    with torch.no_grad():
        whole = whole.to(parameter.device, parameter.dtype)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        parameter.copy_(whole)


def copy_parameters(source: nn.Module, target: nn.Module) -> None:
    """Copies parameters between two modules of the same structure and sharding, shard by shard."""
    with torch.no_grad():
        for (name, from_), (other, to) in zip(source.named_parameters(), target.named_parameters(), strict=True):
            assert name == other and from_.shape == to.shape, f"cannot copy {name} to {other}"
            to.copy_(from_)


def is_main() -> bool:
    """Whether this is the rank that writes files and talks to the terminal."""
    return not dist.is_initialized() or dist.get_rank() == 0


def on_main(action: Callable[[], T]) -> T | None:
    """Runs an action on the main rank while the others wait; a collective of all ranks.

    Returns:
        What the action returned, on the main rank; None on the others.

    Raises:
        Exception: Whatever the action raised, on every rank: a rank that went on alone would wait for the main one.
    """
    result: T | None = None
    error: Exception | None = None
    if is_main():
        try:
            result = action()
        except Exception as failure:
            error = failure
    if (error := from_main(error)) is not None:
        raise error
    return result


def from_main(value: T) -> T:
    """The main rank's value, on every rank; a collective."""
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def of_all_ranks(value: T) -> list[T]:
    """Every rank's value, by rank, on every rank; a collective."""
    gathered = [value] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def move_state(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> None:
    """Moves parameters, buffers and optimizer state, sharded or not; nothing may be computed until they are back.

    A policy server on the same device can then have the memory. The parameters stay the same objects, so optimizers go
    on holding them. Step counters stay where the optimizer wants them.

    Args:
        modules: Actor, critic, reference.
        optimizers: Theirs.
        device: The CPU, or the device the modules compute on.
    """
    for module in modules:
        module.to(device)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
