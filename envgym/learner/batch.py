"""The batch of a rank: trajectories as flat token arrays, who computes which of them, and padded rows of them."""

from __future__ import annotations

import heapq
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from envgym.learner.gae import place_rewards
from envgym.types import Trajectory, TruncationReason

_MID_TURN = (TruncationReason.RESPONSE_LENGTH, TruncationReason.CONTEXT_OVERFLOW)


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory in arrays of equal length T, cheap to send between ranks.

    Attributes:
        index: Position in the global batch; orders samples the same way on any number of ranks.
        token_ids: int64 [T], observations and actions in order.
        action_mask: bool [T], true on sampled tokens.
        turn_ids: int64 [T], the turn a token belongs to.
        behavior_logprobs: float64 [T], 0 outside the mask.
        step_rewards: float64 [N], reward of each turn.
        terminated: False is a truncation, whose last state is bootstrapped.
        mid_turn_cut: The last turn was cut in mid-generation.
        ending: Name of the ending, for diagnostics.
        success: Whether the task was solved, if it says so.
        support: For each action token in order the ids that could have been drawn; None where nothing was cut.
    """

    index: int
    token_ids: np.ndarray
    action_mask: np.ndarray
    turn_ids: np.ndarray
    behavior_logprobs: np.ndarray
    step_rewards: np.ndarray
    terminated: bool
    mid_turn_cut: bool
    ending: str
    success: bool | None
    support: tuple[tuple[int, ...], ...] | None

    @property
    def length(self) -> int:
        return len(self.token_ids)


def make_sample(trajectory: Trajectory, index: int) -> Sample:
    """The arrays of a finished trajectory.

    Raises:
        ValueError: The episode failed, has no action token, lacks log-probabilities for some, holds a number that is
            not finite, or was truncated without the tokens of the state to bootstrap from.
    """
    where = f"the trajectory of {trajectory.env_id} (seed {trajectory.seed})"
    if trajectory.failure is not None:
        raise ValueError(f"{where} failed ({trajectory.failure}); leave failed episodes out of the batch")
    ids, mask = trajectory.token_stream()
    if not any(mask):
        raise ValueError(
            f"{where} has no action token, so there is nothing to train on; did an agent without tokens play it?"
        )
    if ids and mask[0]:
        raise ValueError(
            f"{where} begins with a sampled token, whose state has no token to be valued at; give it a prompt"
        )
    logprobs = np.zeros(len(ids))
    turn_ids = np.zeros(len(ids), dtype=np.int64)
    position = 0
    support: list[tuple[int, ...]] = []
    for number, turn in enumerate(trajectory.turns):
        if len(turn.behavior_logprobs) != len(turn.action_ids):
            raise ValueError(
                f"{where}: turn {number} has {len(turn.action_ids)} action tokens but {len(turn.behavior_logprobs)} "
                "log-probabilities; record one for each sampled token"
            )
        start = position + len(turn.observation_ids)
        end = start + len(turn.action_ids)
        turn_ids[position:end] = number
        logprobs[start:end] = turn.behavior_logprobs
        position = end
        if turn.support is not None:
            support += turn.support
    turn_ids[position:] = max(len(trajectory.turns) - 1, 0)
    rewards = np.array([turn.reward for turn in trajectory.turns])
    if not (np.isfinite(rewards).all() and np.isfinite(logprobs).all()):
        raise ValueError(f"{where} holds a reward or a log-probability that is not finite")
    mid_turn_cut = (
        trajectory.truncation_reason in _MID_TURN
        and not trajectory.turns[-1].executed
        and trajectory.turns[-1].finish_reason in ("length", "context")
    )
    if trajectory.truncated and not mid_turn_cut and not trajectory.final_observation_ids:
        context_full = trajectory.truncation_reason is TruncationReason.CONTEXT_OVERFLOW
        if not context_full:
            raise ValueError(f"{where} was truncated but has no tokens of its final observation to bootstrap from")
    num_actions = sum(mask)
    if support and len(support) != num_actions:
        raise ValueError(f"{where} has a sampling support for only {len(support)} of {num_actions} action tokens")
    return Sample(
        index=index,
        token_ids=np.array(ids, dtype=np.int64),
        action_mask=np.array(mask),
        turn_ids=turn_ids,
        behavior_logprobs=logprobs,
        step_rewards=rewards,
        terminated=trajectory.terminated,
        mid_turn_cut=mid_turn_cut,
        ending=trajectory.ending,
        success=trajectory.success,
        support=tuple(support) or None,
    )


@dataclass(slots=True)
class Batch:
    """Samples of one rank, right-padded to [B, T]. What the learner computes is added as it comes to be known.

    Attributes:
        token_ids: int64 [B, T]; 0 in the padding.
        action_mask: bool [B, T], set at collection and never edited.
        loss_mask: bool [B, T], the action tokens that are trained on.
        turn_ids: int64 [B, T].
        lengths: int64 [B].
        num_turns: int64 [B].
        terminated, mid_turn_cut: bool [B].
        behavior_logprobs: [B, T].
        rewards: [B, T], placed on action tokens.
        supports: int64 [B, T, S] ids that could have been drawn, -1 in the padding; None where nothing was cut.
        proximal_logprobs, ref_logprobs, values, advantages, value_targets: [B, T].
        bootstrap_value: [B], 0 where terminated.
    """

    samples: list[Sample]
    token_ids: Tensor
    action_mask: Tensor
    loss_mask: Tensor
    turn_ids: Tensor
    lengths: Tensor
    num_turns: Tensor
    terminated: Tensor
    mid_turn_cut: Tensor
    behavior_logprobs: Tensor
    rewards: Tensor
    supports: Tensor | None
    proximal_logprobs: Tensor
    values: Tensor
    bootstrap_value: Tensor
    advantages: Tensor
    value_targets: Tensor
    ref_logprobs: Tensor | None = None

    @property
    def size(self) -> int:
        return len(self.samples)


def collate(samples: Sequence[Sample], *, dtype: torch.dtype, device: torch.device) -> Batch:
    """Pads samples into a batch on a device. A rank without samples gets tensors of shape [0, 1].

    Args:
        samples: May be empty.
        dtype: Type of the floating-point tensors.
        device: Where to put them.
    """
    batch, width = len(samples), max((sample.length for sample in samples), default=1)
    num_steps = max((len(sample.step_rewards) for sample in samples), default=1)

    def padded(name: str, like: torch.dtype) -> Tensor:
        out = torch.zeros(batch, width, dtype=like)
        for row, sample in enumerate(samples):
            values = torch.from_numpy(getattr(sample, name))
            out[row, : sample.length] = values.to(like)
        return out

    step_rewards = torch.zeros(batch, num_steps, dtype=torch.float64)
    for row, sample in enumerate(samples):
        step_rewards[row, : len(sample.step_rewards)] = torch.from_numpy(sample.step_rewards)
    action_mask, turn_ids = padded("action_mask", torch.bool), padded("turn_ids", torch.int64)
    rewards = place_rewards(step_rewards, turn_ids, action_mask)
    placed, given = math.fsum(rewards.flatten().tolist()), math.fsum(step_rewards.flatten().tolist())
    assert math.isclose(placed, given, rel_tol=1e-9, abs_tol=1e-9), "rewards were lost on the way to the learner"
    zeros = torch.zeros(batch, width, dtype=dtype, device=device)
    return Batch(
        samples=list(samples),
        token_ids=padded("token_ids", torch.int64).to(device),
        action_mask=action_mask.to(device),
        loss_mask=action_mask.to(device),
        turn_ids=turn_ids.to(device),
        lengths=torch.tensor([sample.length for sample in samples], dtype=torch.int64, device=device),
        num_turns=torch.tensor([len(sample.step_rewards) for sample in samples], dtype=torch.int64, device=device),
        terminated=torch.tensor([sample.terminated for sample in samples], dtype=torch.bool, device=device),
        mid_turn_cut=torch.tensor([sample.mid_turn_cut for sample in samples], dtype=torch.bool, device=device),
        behavior_logprobs=padded("behavior_logprobs", dtype).to(device),
        rewards=rewards.to(device, dtype),
        supports=_padded_supports(samples, action_mask, device),
        proximal_logprobs=zeros.clone(),
        values=zeros.clone(),
        bootstrap_value=torch.zeros(batch, dtype=dtype, device=device),
        advantages=zeros.clone(),
        value_targets=zeros.clone(),
    )


def _padded_supports(samples: Sequence[Sample], action_mask: Tensor, device: torch.device) -> Tensor | None:
    """int64 [B, T, S]; a token without a recorded support gets -1 throughout, which stands for the whole vocabulary."""
    widest = max((len(ids) for sample in samples for ids in sample.support or ()), default=0)
    if widest == 0:
        return None
    out = torch.full((*action_mask.shape, widest), -1, dtype=torch.int64)
    for row, sample in enumerate(samples):
        columns = action_mask[row].nonzero().flatten().tolist()
        for column, ids in zip(columns, sample.support or (), strict=False):
            out[row, column, : len(ids)] = torch.tensor(ids)
    return out.to(device)


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
