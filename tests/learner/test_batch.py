"""The batch: nothing is lost from trajectory to rows, and every sample is computed once, by one rank."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_learner import CPU, make_samples, make_trajectory

from envgym.learner.batch import ENDINGS, Batch, collate, exchange_samples, make_sample, plan_batch, plan_microbatches
from envgym.learner.gae import place_rewards, turn_steps
from envgym.types import Trajectory, TruncationReason, Turn

TURNS = (
    Turn("a", "x", 0.5, observation_ids=(1, 2), action_ids=(3, 4), behavior_logprobs=(-0.1, -0.2)),
    Turn("b", "y", -1.0, observation_ids=(5,), action_ids=(6,), behavior_logprobs=(-0.3,)),
)
ENDED = Trajectory("t/E-v0", 7, TURNS, terminated=True, truncated=False, final_observation_ids=(8, 9))


def truncated(reason=TruncationReason.MAX_TURNS, **changes):
    return dataclasses.replace(ENDED, terminated=False, truncated=True, truncation_reason=reason, **changes)


def with_turn(number, **changes):
    turns = list(TURNS)
    turns[number] = dataclasses.replace(turns[number], **changes)
    return dataclasses.replace(ENDED, turns=tuple(turns))


def test_the_arrays_of_a_trajectory_written_out():
    sample = make_sample(ENDED, 3)
    assert (sample.index, sample.group, make_sample(ENDED, 3, group=8).group) == (3, 3, 8)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9]
    assert sample.action_mask.tolist() == [False, False, True, True, False, True, False, False]
    assert sample.turn_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sample.behavior_logprobs.tolist() == [0, 0, -0.1, -0.2, 0, -0.3, 0, 0]
    assert sample.turn_steps.tolist() == [0, 0, 0, 1, 0, 1, 0, 0]
    assert sample.rewards.tolist() == [0, 0, 0, 0.5, 0, -1.0, 0, 0]
    assert (sample.terminated, sample.ending, sample.support) == (True, "terminated", None)


@pytest.mark.parametrize(
    "reason", [TruncationReason.MAX_TURNS, TruncationReason.TIME_LIMIT, TruncationReason.CONTEXT_OVERFLOW]
)
def test_a_truncation_between_turns_is_not_terminated_and_keeps_its_reason(reason):
    sample = make_sample(truncated(reason), 0)
    assert (sample.terminated, sample.turn_steps[5], sample.ending) == (False, 1, reason.value)


@pytest.mark.parametrize(("finish", "reason"), [("length", "response_length"), ("context", "context_overflow")])
def test_a_turn_cut_in_mid_generation_is_marked(finish, reason):
    cut = with_turn(1, executed=False, finish_reason=finish, reward=0.0)
    sample = make_sample(truncated(TruncationReason(reason), turns=cut.turns, final_observation_ids=()), 0)
    assert sample.turn_steps.tolist() == [0, 0, 0, 1, 0, 0]  # the step of the turn that was cut was never completed
    assert not sample.terminated and sample.ending == reason
    # A limit that belongs to the task terminates.
    assert make_sample(dataclasses.replace(cut, final_observation_ids=()), 0).terminated


def test_a_context_that_is_full_to_the_last_token_needs_no_final_observation():
    sample = make_sample(truncated(TruncationReason.CONTEXT_OVERFLOW, final_observation_ids=()), 0)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6] and sample.turn_steps[5] == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (truncated(final_observation_ids=()), r"t/E-v0 \(seed 7\) was truncated but has no tokens of its final obs"),
        (
            dataclasses.replace(ENDED, terminated=False, failure="OSError: gone"),
            r"failed \(OSError: gone\); leave failed episodes out",
        ),
        (
            dataclasses.replace(ENDED, turns=(Turn("a", "x", 1.0),), final_observation_ids=()),
            "has no action token.*agent without tokens",
        ),
        (with_turn(0, observation_ids=()), "begins with a sampled token"),
        (with_turn(0, behavior_logprobs=(-0.1,)), "turn 0 has 2 action tokens but 1 log-probabilities"),
        (with_turn(1, reward=math.nan), "not finite"),
        (with_turn(1, reward=math.inf), "not finite"),
        (with_turn(1, behavior_logprobs=(-math.inf,)), "not finite"),
        (with_turn(1, support=((6, 7),)), "sampling support for only 1 of 3 action tokens"),
    ],
)
def test_a_trajectory_that_cannot_be_learned_from_is_refused_in_one_line(bad, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_sample(bad, 0)
    assert "\n" not in str(caught.value)


def test_rewards_of_a_batch_are_conserved_and_on_action_tokens():
    trajectories = [make_trajectory(i, num_turns=1 + i) for i in range(4)]
    batch = collate([make_sample(t, i) for i, t in enumerate(trajectories)], dtype=torch.float64, device=CPU)
    for row, trajectory in enumerate(trajectories):
        assert batch.rewards[row].sum().item() == pytest.approx(
            sum(turn.reward for turn in trajectory.turns), abs=1e-12
        )
    assert (batch.rewards[~batch.action_mask] == 0).all()


def test_the_reward_of_a_turn_without_tokens_moves_to_the_action_before_or_else_to_the_first_after():
    silent = Turn("b", "", 0.25, observation_ids=(5,))
    behind = make_sample(dataclasses.replace(ENDED, turns=(TURNS[0], silent)), 0)
    assert behind.rewards.nonzero()[0].tolist() == [3] and behind.rewards[3] == 0.75
    before = make_sample(dataclasses.replace(ENDED, turns=(silent, TURNS[0])), 0)
    assert before.rewards.tolist() == [0, 0, 0, 0.25, 0.5, 0, 0]
    assert (behind.turn_steps[3], before.turn_steps[4]) == (2, 1)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(any), cut=st.booleans())
def test_rewards_and_steps_are_those_of_the_public_functions(counts, cut):
    turns = [
        Turn("o", "a", 2.0**n, observation_ids=(1,), action_ids=(2,) * count, behavior_logprobs=(-1.0,) * count)
        for n, count in enumerate(counts)
    ]
    changes = {}
    if cut:
        turns[-1] = dataclasses.replace(turns[-1], executed=False, finish_reason="length")
        changes = {"terminated": False, "truncated": True, "truncation_reason": TruncationReason.RESPONSE_LENGTH}
    sample = make_sample(dataclasses.replace(ENDED, turns=tuple(turns), **changes), 0)
    mask, ids = torch.tensor(sample.action_mask)[None], torch.tensor(sample.turn_ids)[None]
    rewards = torch.tensor([[2.0**n for n in range(len(counts))]], dtype=torch.float64)
    assert sample.rewards.tolist() == place_rewards(rewards, ids, mask)[0].tolist()
    steps = turn_steps(ids, mask, num_turns=torch.tensor([len(counts)]), mid_turn_cut=torch.tensor([cut]))
    assert sample.turn_steps.tolist() == steps[0].tolist()


def test_a_batch_is_padded_on_the_right_and_says_how_long_its_rows_are():
    short = dataclasses.replace(ENDED, turns=TURNS[:1], final_observation_ids=())
    batch = collate([make_sample(short, 0), make_sample(ENDED, 1)], dtype=torch.float32, device=CPU)
    assert batch.token_ids[0].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    assert batch.lengths.tolist() == [4, 8]
    assert [ENDINGS[n] for n in batch.endings] == ["terminated"] * 2
    assert batch.action_mask[0].tolist() == [False, False, True, True, False, False, False, False]
    assert torch.equal(batch.loss_mask, batch.action_mask)
    assert batch.behavior_logprobs.dtype == torch.float32


def test_a_rank_without_samples_gets_an_empty_batch():
    batch = collate([], dtype=torch.float64, device=CPU)
    assert batch.size == 0
    assert batch.token_ids.shape == batch.rewards.shape == (0, 2)
    assert batch.bootstrap_value.shape == (0,)


def test_a_micro_batch_is_some_rows_cropped_to_the_longest():
    batch = collate(make_samples(), dtype=torch.float64, device=CPU)
    batch.proximal_logprobs = torch.rand(batch.token_ids.shape, dtype=torch.float64)
    rows = torch.tensor([5, 0])
    micro = batch.select(rows)
    width = int(batch.lengths[rows].max())
    assert width < batch.token_ids.shape[1] and micro.size == 2
    for name in ("token_ids", "action_mask", "loss_mask", "turn_steps", "rewards", "proximal_logprobs"):
        assert torch.equal(getattr(micro, name), getattr(batch, name)[rows, :width]), name
    for name in ("lengths", "groups", "endings", "terminated", "bootstrap_value"):
        assert torch.equal(getattr(micro, name), getattr(batch, name)[rows]), name
    assert micro.weights is None and micro.supports is None


@pytest.mark.parametrize("count", [0, 7], ids=["of an empty batch", "of a full one"])
def test_no_rows_give_a_dummy_row_that_is_masked_throughout(count):
    batch = collate(make_samples(count), dtype=torch.float64, device=CPU)
    batch.weights = torch.ones_like(batch.values)
    dummy = batch.select(torch.tensor([], dtype=torch.int64))
    assert dummy.token_ids.shape == dummy.weights.shape == (1, 2) and dummy.lengths.tolist() == [2]
    assert not (dummy.action_mask.any() or dummy.loss_mask.any() or dummy.token_ids.any())


def with_support() -> Batch:
    turns = (
        dataclasses.replace(TURNS[0], support=((3, 30), (4,))),
        dataclasses.replace(TURNS[1], support=((6, 60, 61),)),
    )
    samples = [make_sample(ENDED, 0), make_sample(dataclasses.replace(ENDED, turns=turns), 1)]
    return collate(samples, dtype=torch.float64, device=CPU)


def test_supports_stay_ragged_and_a_turn_without_one_stands_for_the_whole_vocabulary():
    batch = with_support()
    assert batch.supports.ids.tolist() == [3, 30, 4, 6, 60, 61]
    assert batch.supports.sizes.tolist() == [0, 0, 0, 2, 1, 3]
    picked = batch.supports[torch.tensor([5, 0, 3])]
    assert (picked.ids.tolist(), picked.sizes.tolist()) == ([6, 60, 61, 3, 30], [3, 0, 2])
    assert batch.supports[4:].ids.tolist() == [4, 6, 60, 61]
    swapped = batch.select(torch.tensor([1, 0])).supports
    assert (swapped.ids.tolist(), swapped.sizes.tolist()) == ([3, 30, 4, 6, 60, 61], [2, 1, 3, 0, 0, 0])
    none = batch.select(torch.tensor([], dtype=torch.int64)).supports
    assert (none.ids.tolist(), none.sizes.tolist()) == ([], [])
    assert collate([make_sample(ENDED, 0)], dtype=torch.float64, device=CPU).supports is None


def test_the_memory_of_supports_is_that_of_their_ids():
    """One token with a wide support among many narrow ones: a padded table would be 1000 times as large."""
    turn = Turn("o", "a", 0.0, observation_ids=(1,), action_ids=(2,) * 2000, behavior_logprobs=(-1.0,) * 2000)
    support = (tuple(range(40_000)), *(((2, 3),) * 1999))
    sample = make_sample(dataclasses.replace(ENDED, turns=(dataclasses.replace(turn, support=support),)), 0)
    batch = collate([sample] * 2, dtype=torch.float32, device=CPU)
    num_ids = 2 * (40_000 + 2 * 1999)
    for supports in (batch.supports, batch.select(torch.tensor([1, 0])).supports):
        held = sum(tensor.untyped_storage().nbytes() for tensor in (supports.ids, supports.sizes))
        assert held == 4 * num_ids + 8 * 4000
    assert len(pickle.dumps(sample)) < 4 * num_ids + 100_000


def test_a_sample_survives_json_and_pickle():
    trajectory = make_trajectory(5, ending="max_turns")
    direct = make_sample(trajectory, 0)
    back = pickle.loads(pickle.dumps(make_sample(Trajectory.from_json(trajectory.to_json()), 0)))
    for name in ("token_ids", "action_mask", "turn_ids", "turn_steps", "behavior_logprobs", "rewards"):
        assert np.array_equal(getattr(direct, name), getattr(back, name)), name


# -- who computes what ------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, num_minibatches=st.integers(1, 5), num_ranks=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_plan_gives_each_sample_one_minibatch_and_one_rank(lengths, num_minibatches, num_ranks, seed):
    if len(lengths) < num_minibatches:
        return
    plan = plan_batch(lengths, num_minibatches=num_minibatches, num_ranks=num_ranks, seed=seed)
    sizes = np.bincount(plan.minibatch, minlength=num_minibatches)
    assert sizes.sum() == len(lengths)
    assert sizes.max() - sizes.min() <= 1
    assert ((plan.rank >= 0) & (plan.rank < num_ranks)).all()


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, num_ranks=st.integers(1, 4), seed=st.integers(0, 9))
def test_within_a_minibatch_ranks_differ_by_at_most_the_longest_sample(lengths, num_ranks, seed):
    plan = plan_batch(lengths, num_minibatches=1, num_ranks=num_ranks, seed=seed)
    loads = np.bincount(plan.rank, weights=lengths, minlength=num_ranks)
    assert loads.max() - loads.min() <= max(lengths)


def test_the_minibatches_do_not_depend_on_the_number_of_ranks():
    lengths = [5, 9, 2, 7, 7, 1, 30]
    plans = [plan_batch(lengths, num_minibatches=3, num_ranks=ranks, seed=4) for ranks in (1, 2, 3)]
    assert all(np.array_equal(plan.minibatch, plans[0].minibatch) for plan in plans)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another():
    lengths = list(range(1, 30))
    plans = [plan_batch(lengths, num_minibatches=4, num_ranks=2, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(plans[0].minibatch, plans[1].minibatch) and np.array_equal(plans[0].rank, plans[1].rank)
    assert not np.array_equal(plans[0].minibatch, plans[2].minibatch)


def test_the_longest_go_first_each_to_the_rank_with_the_fewest_tokens():
    plan = plan_batch([8, 7, 6, 5, 4], num_minibatches=1, num_ranks=2, seed=0)
    # 8 to a, 7 to b, 6 to b (13), 5 to a (13), 4 to either.
    a, b = plan.rank[0], plan.rank[1]
    assert a != b
    assert (plan.rank[2], plan.rank[3]) == (b, a)


def test_lone_samples_of_several_minibatches_do_not_all_go_to_one_rank():
    plan = plan_batch([10] * 6, num_minibatches=6, num_ranks=2, seed=0)
    assert np.bincount(plan.rank).tolist() == [3, 3]


def test_fewer_samples_than_minibatches_is_an_error():
    with pytest.raises(ValueError, match="2 episodes cannot fill 3 minibatches; collect more or ask for fewer"):
        plan_batch([4, 4], num_minibatches=3, num_ranks=1, seed=0)


def test_one_rank_exchanges_with_itself_in_the_order_of_the_index(one_rank):
    samples = make_samples(4)
    arrived = exchange_samples([samples[i] for i in (2, 0, 3, 1)], [0] * 4, device=CPU)
    assert [sample.index for sample in arrived] == [0, 1, 2, 3]
    assert arrived[2].token_ids.tolist() == samples[2].token_ids.tolist()
    assert exchange_samples([], [], device=CPU) == []


@settings(max_examples=60, deadline=None)
@given(lengths=LENGTHS, max_tokens=st.integers(1, 1500))
def test_micro_batches_hold_every_row_once_and_keep_to_the_limit(one_rank, lengths, max_tokens):
    tensor = torch.tensor(lengths)
    groups = plan_microbatches(tensor, torch.arange(len(lengths)), max_tokens=max_tokens)
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * int(tensor[group].max())
        assert padded <= max_tokens or len(group) == 1


def test_micro_batches_take_rows_of_similar_length_together(one_rank):
    groups = plan_microbatches(torch.tensor([9, 2, 3, 10, 2]), torch.tensor([0, 1, 2, 3]), max_tokens=20)
    assert [group.tolist() for group in groups] == [[1, 2], [0, 3]]


def test_a_rank_without_rows_gets_no_group_of_its_own(one_rank):
    assert (
        plan_microbatches(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), max_tokens=9) == []
    )
