"""Who computes what: every sample once, minibatches the same on any number of ranks, tokens shared fairly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_learner import CPU, make_samples

from envgym.learner.batch import exchange_samples, plan_batch, plan_microbatches

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
