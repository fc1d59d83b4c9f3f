"""Who computes what: minibatches over all ranks, a fair share of tokens for each rank, micro-batches within a rank."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from envgym.learner.samples import Sample


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each sample of the global batch goes.

    Attributes:
        minibatch: Minibatch of each sample, by global index.
        rank: Rank that computes each sample, by global index.
    """

    minibatch: np.ndarray
    rank: np.ndarray


def plan_batch(lengths: Sequence[int], *, num_minibatches: int, num_ranks: int, seed: int) -> Plan:
    """Splits the global batch into random minibatches of equal size and gives each rank its share of every minibatch.

    The minibatches depend on the seed and the number of samples only, so any number of ranks makes the same updates.
    Within a minibatch the longest samples are dealt first, each to the rank with the fewest tokens so far.

    Args:
        lengths: Tokens of each sample, by global index.
        num_minibatches: Updates of one pass.
        num_ranks: Ranks that share the work.
        seed: Seed of the permutation.

    Raises:
        ValueError: There are fewer samples than minibatches.
    """
    num_samples = len(lengths)
    if num_samples < num_minibatches:
        raise ValueError(
            f"{num_samples} episodes cannot fill {num_minibatches} minibatches; collect more or ask for fewer"
        )
    order = np.random.default_rng(seed).permutation(num_samples)
    minibatch = np.empty(num_samples, dtype=np.int64)
    rank = np.empty(num_samples, dtype=np.int64)
    loads = [(0, r) for r in range(num_ranks)]
    for number, members in enumerate(np.array_split(order, num_minibatches)):
        minibatch[members] = number
        # Loads carry over from minibatch to minibatch only to break ties between ranks fairly.
        shares = [(0, load, r) for load, r in loads]
        heapq.heapify(shares)
        for index in sorted(members.tolist(), key=lambda i: (-lengths[i], i)):
            tokens, load, r = heapq.heappop(shares)
            rank[index] = r
            heapq.heappush(shares, (tokens + lengths[index], load + lengths[index], r))
        loads = [(load, r) for _, load, r in shares]
    return Plan(minibatch, rank)


def exchange_samples(samples: Sequence[Sample], destinations: Sequence[int], *, device: torch.device) -> list[Sample]:
    """Sends each sample to its rank and returns those that came here, ordered by global index.

    Args:
        samples: Samples of this rank.
        destinations: Rank of each.
        device: Where the backend communicates from (CPU for gloo, CUDA for NCCL).
    """
    world = dist.get_world_size()
    parcels = [pickle.dumps([s for s, to in zip(samples, destinations, strict=True) if to == r]) for r in range(world)]
    sizes = torch.tensor([len(parcel) for parcel in parcels], dtype=torch.int64, device=device)
    incoming = torch.empty_like(sizes)
    dist.all_to_all_single(incoming, sizes)
    outgoing = torch.frombuffer(bytearray(b"".join(parcels)), dtype=torch.uint8).to(device)
    received = torch.empty(int(incoming.sum()), dtype=torch.uint8, device=device)
    dist.all_to_all_single(received, outgoing, incoming.tolist(), sizes.tolist())
    arrived: list[Sample] = []
    for part in received.cpu().split(incoming.tolist()):
        arrived += pickle.loads(part.numpy().tobytes())
    return sorted(arrived, key=lambda sample: sample.index)


def plan_microbatches(lengths: Tensor, rows: Tensor, *, max_tokens: int) -> list[Tensor]:
    """Groups rows of similar length so that a group, padded to its longest row, holds at most `max_tokens` tokens.

    Every rank gets the same number of groups, some of them empty, since each group is a collective of all ranks. A row
    longer than `max_tokens` makes a group of its own.

    Args:
        lengths: int64 [B].
        rows: int64, the rows to group; may be empty.
        max_tokens: Padded tokens of a group.
    """
    order = rows[lengths[rows].argsort(stable=True)].tolist() if rows.numel() else []
    groups: list[list[int]] = []
    for row in order:
        # Sorted by length, the row at hand is the longest of its group.
        if groups and (len(groups[-1]) + 1) * int(lengths[row]) <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    count = torch.tensor(len(groups), dtype=torch.int64, device=lengths.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    groups += [[] for _ in range(int(count) - len(groups))]
    return [torch.tensor(group, dtype=torch.int64, device=lengths.device) for group in groups]
