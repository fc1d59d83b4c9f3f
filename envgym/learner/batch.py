"""The batch of a rank: trajectories as flat token arrays, who computes which of them, and padded rows of them."""

from __future__ import annotations

import heapq
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from envgym.types import Trajectory, TruncationReason

ENDINGS = ("terminated", *(reason.value for reason in TruncationReason))
_MID_TURN = (TruncationReason.RESPONSE_LENGTH, TruncationReason.CONTEXT_OVERFLOW)


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory in arrays of equal length T, cheap to send between ranks. An example of two turns:

        token_ids    P   P   a   b   O   c   F        P prompt, O observation, F final one; a, b, c sampled
        action_mask  0   0   1   1   0   1   0
        turn_ids     0   0   0   0   1   1   1
        turn_steps   0   0   0   1   0   1   0        environment steps until the next sampled token, or the end
        rewards      0   0   0  r_0  0  r_1  0        of a step, on the last sampled token of its turn

    Attributes:
        index: Position in the global batch; orders samples the same way on any number of ranks.
        group: Trajectories that share it played the same task from the same seed, for baselines over a group.
        token_ids: int64 [T], observations and actions in order.
        action_mask: bool [T], true on sampled tokens.
        turn_ids: int64 [T], the turn a token belongs to.
        turn_steps: int64 [T], on action tokens the environment steps completed before the next action token, on the
            last one those before the state to bootstrap from: 0 inside a turn and at a cut in mid-generation.
        behavior_logprobs: float64 [T], 0 outside the mask.
        rewards: float64 [T], 0 outside the mask.
        terminated: False is a truncation, whose last state is bootstrapped.
        ending: Name of the ending, one of `ENDINGS`, for diagnostics.
        support: For each action token in order the ids that could have been drawn: int32 ids end to end, and int64
            numbers of ids. None where nothing was cut.
    """

    index: int
    group: int
    token_ids: np.ndarray
    action_mask: np.ndarray
    turn_ids: np.ndarray
    turn_steps: np.ndarray
    behavior_logprobs: np.ndarray
    rewards: np.ndarray
    terminated: bool
    ending: str
    support: tuple[np.ndarray, np.ndarray] | None

    @property
    def length(self) -> int:
        return len(self.token_ids)


def make_sample(trajectory: Trajectory, index: int, *, group: int | None = None) -> Sample:
    """The arrays of a finished trajectory.

    The reward of a turn without action tokens goes to the last action token before it or, where there is none, to the
    first one after it (`envgym.learner.gae.place_rewards` does the same for tensors).

    Args:
        trajectory: With token ids and log-probabilities.
        index: See `Sample`.
        group: See `Sample`; None is a group of its own, numbered like the index.

    Raises:
        ValueError: The episode failed, has no action token, lacks log-probabilities for some, holds a number that is
            not finite, or was truncated without the tokens of the state to bootstrap from.
    """
    where = f"the trajectory of {trajectory.env_id} (seed {trajectory.seed})"
    if trajectory.failure is not None:
        raise ValueError(f"{where} failed ({trajectory.failure}); leave failed episodes out of the batch")
    ids, mask = trajectory.token_stream()
    num_actions = sum(mask)
    if not num_actions:
        raise ValueError(
            f"{where} has no action token, so there is nothing to train on; did an agent without tokens play it?"
        )
    if mask[0]:
        raise ValueError(
            f"{where} begins with a sampled token, whose state has no token to be valued at; give it a prompt"
        )
    mid_turn_cut = (
        trajectory.truncation_reason in _MID_TURN
        and not trajectory.turns[-1].executed
        and trajectory.turns[-1].finish_reason in ("length", "context")
    )
    context_full = trajectory.truncation_reason is TruncationReason.CONTEXT_OVERFLOW
    if trajectory.truncated and not (mid_turn_cut or context_full or trajectory.final_observation_ids):
        raise ValueError(f"{where} was truncated but has no tokens of its final observation to bootstrap from")

    turn_ids = np.full(len(ids), len(trajectory.turns) - 1, dtype=np.int64)
    turn_steps = np.zeros(len(ids), dtype=np.int64)
    logprobs, rewards = np.zeros(len(ids)), np.zeros(len(ids))
    support: list[tuple[int, ...]] = []
    position, first, last = 0, mask.index(True), -1
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
        support += turn.support or ()
        if end > start:
            last = end - 1
        rewards[last if last >= 0 else first] += turn.reward
        if last >= 0:  # steps before the first action token lie between no two of them
            turn_steps[last] += 1
        position = end
    turn_steps[last] -= mid_turn_cut  # its step was never completed
    if not (np.isfinite(rewards).all() and np.isfinite(logprobs).all()):
        raise ValueError(f"{where} holds a reward or a log-probability that is not finite")
    assert math.isclose(math.fsum(rewards), math.fsum(t.reward for t in trajectory.turns), rel_tol=1e-9, abs_tol=1e-9)
    if support and len(support) != num_actions:
        raise ValueError(f"{where} has a sampling support for only {len(support)} of {num_actions} action tokens")
    return Sample(
        index=index,
        group=index if group is None else group,
        token_ids=np.array(ids, dtype=np.int64),
        action_mask=np.array(mask),
        turn_ids=turn_ids,
        turn_steps=turn_steps,
        behavior_logprobs=logprobs,
        rewards=rewards,
        terminated=trajectory.terminated,
        ending=trajectory.ending,
        support=_flat(support) if support else None,
    )


def _flat(support: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.array([len(ids) for ids in support], dtype=np.int64)
    return np.fromiter((i for ids in support for i in ids), dtype=np.int32, count=int(sizes.sum())), sizes


@dataclass(frozen=True, slots=True)
class Supports:
    """For each of K tokens the ids it was drawn from, end to end; no ids stand for the whole vocabulary.

    Attributes:
        ids: int32 [S], S the number of all ids.
        sizes: int64 [K].
    """

    ids: Tensor
    sizes: Tensor

    def __getitem__(self, tokens: Tensor | slice) -> Supports:
        """The supports of some tokens."""
        sizes = self.sizes[tokens]
        begins = (self.sizes.cumsum(0) - self.sizes)[tokens]
        # Each id's distance from the first id of its token, added to where that one lies.
        shift = begins - (sizes.cumsum(0) - sizes)
        places = torch.arange(int(sizes.sum()), device=sizes.device) + shift.repeat_interleave(sizes)
        return Supports(self.ids[places], sizes)


@dataclass(slots=True)
class Batch:
    """Samples of one rank, right-padded to [B, T]. What the learner computes is added as it comes to be known.

    Attributes:
        token_ids: int64 [B, T]; 0 in the padding.
        action_mask: bool [B, T], set at collection and never edited.
        loss_mask: bool [B, T], the action tokens that are trained on.
        turn_ids, turn_steps: int64 [B, T], see `Sample`.
        lengths: int64 [B].
        groups: int64 [B], see `Sample`.
        endings: int64 [B], places in `ENDINGS`.
        terminated: bool [B].
        behavior_logprobs: [B, T].
        rewards: [B, T], nonzero on action tokens only.
        supports: Of the action tokens, row after row; None where nothing was cut.
        proximal_logprobs, values, old_values, advantages, value_targets: [B, T]; old values are those from before the
            first update. Without a critic the values and their targets stay 0.
        bootstrap_value: [B], 0 where terminated.
        ref_logprobs, weights: [B, T], of the frozen reference and of importance sampling; None without.
    """

    token_ids: Tensor
    action_mask: Tensor
    loss_mask: Tensor
    turn_ids: Tensor
    turn_steps: Tensor
    lengths: Tensor
    groups: Tensor
    endings: Tensor
    terminated: Tensor
    behavior_logprobs: Tensor
    rewards: Tensor
    supports: Supports | None
    proximal_logprobs: Tensor
    values: Tensor
    old_values: Tensor
    bootstrap_value: Tensor
    advantages: Tensor
    value_targets: Tensor
    ref_logprobs: Tensor | None = None
    weights: Tensor | None = None

    @property
    def size(self) -> int:
        return len(self.lengths)

    def select(self, rows: Tensor) -> Batch:
        """A micro-batch: some rows, cropped to the longest of them.

        No rows give one dummy row of two tokens that is masked throughout: a micro-batch is a collective, and a rank
        without rows of its own must compute on something.

        Args:
            rows: int64 [b].
        """
        if not len(rows):
            return self._dummy()
        width = int(self.lengths[rows].max())
        supports = self.supports
        if supports is not None:
            number = (self.action_mask.flatten().cumsum(0) - 1).view_as(self.token_ids)
            supports = supports[number[rows][self.action_mask[rows]]]
        tensors = {
            name: value[rows] if value.ndim == 1 else value[rows, :width] for name, value in self._tensors().items()
        }
        return Batch(**tensors, supports=supports)

    def _dummy(self) -> Batch:
        tensors = {
            name: value.new_zeros(1) if value.ndim == 1 else value.new_zeros(1, 2)
            for name, value in self._tensors().items()
        }
        tensors["lengths"] += 2
        return Batch(**tensors, supports=None if self.supports is None else self.supports[:0])

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def collate(samples: Sequence[Sample], *, dtype: torch.dtype, device: torch.device) -> Batch:
    """Pads samples into a batch on a device. A rank without samples gets tensors of shape [0, 2].

    Args:
        samples: May be empty.
        dtype: Type of the floating-point tensors.
        device: Where to put them.
    """
    width = max((sample.length for sample in samples), default=2)

    def padded(name: str, like: torch.dtype) -> Tensor:
        out = torch.zeros(len(samples), width, dtype=like)
        for row, sample in enumerate(samples):
            out[row, : sample.length] = torch.from_numpy(getattr(sample, name)).to(like)
        return out.to(device)

    def column(values: list[int], like: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=like, device=device)

    action_mask, zeros = padded("action_mask", torch.bool), torch.zeros(len(samples), width, dtype=dtype, device=device)
    return Batch(
        token_ids=padded("token_ids", torch.int64),
        action_mask=action_mask,
        loss_mask=action_mask.clone(),
        turn_ids=padded("turn_ids", torch.int64),
        turn_steps=padded("turn_steps", torch.int64),
        lengths=column([sample.length for sample in samples]),
        groups=column([sample.group for sample in samples]),
        endings=column([ENDINGS.index(sample.ending) for sample in samples]),
        terminated=column([sample.terminated for sample in samples], torch.bool),
        behavior_logprobs=padded("behavior_logprobs", dtype),
        rewards=padded("rewards", dtype),
        supports=_collated_supports(samples, device),
        proximal_logprobs=zeros.clone(),
        values=zeros.clone(),
        old_values=zeros.clone(),
        bootstrap_value=torch.zeros(len(samples), dtype=dtype, device=device),
        advantages=zeros.clone(),
        value_targets=zeros.clone(),
    )


def _collated_supports(samples: Sequence[Sample], device: torch.device) -> Supports | None:
    if all(sample.support is None for sample in samples):
        return None
    none = np.zeros(0, dtype=np.int32)
    parts = [s.support or (none, np.zeros(s.action_mask.sum(), dtype=np.int64)) for s in samples]
    ids, sizes = (torch.from_numpy(np.concatenate(column)).to(device) for column in zip(*parts, strict=True))
    return Supports(ids, sizes)


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
