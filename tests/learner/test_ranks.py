"""The number of ranks, the split of the samples and the size of micro-batches change nothing."""

import functools
import math

import pytest
import torch
from rank_jobs import (
    RUNS,
    assert_continues,
    assert_same_run,
    assert_same_weights,
    everything_on_two_ranks,
    imitate,
    load_then_train,
    save_then_train,
    train_twice,
    train_with_tiny_chunks,
)
from tiny_learner import EVERYTHING, make_lm, make_samples, on_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: tmp_path_factory.mktemp(name) for name in ("one", "two")}


@pytest.fixture(scope="module")
def saved_on_one(one_rank, folders):
    return save_then_train(str(folders["one"]), EVERYTHING)


@pytest.fixture(scope="module")
def two_ranks(saved_on_one, folders):
    return on_ranks(2, everything_on_two_ranks, str(folders["two"]), str(folders["one"] / "000001"))


@pytest.fixture(scope="module")
def alone(one_rank):
    """A run of one rank, by its name."""
    return functools.cache(lambda name: train_twice(**RUNS[name]))


def test_the_settings_of_these_tests_use_every_term(alone):
    first, second = alone("even")["metrics"]
    assert first["policy/dual_clip_fraction"] > 0 or second["policy/dual_clip_fraction"] > 0
    assert second["policy/clip_fraction"] > 0
    assert second["critic/clip_fraction"] > 0
    assert second["policy/kl_reference"] > 0
    assert second["policy/kl_beta"] != first["policy/kl_beta"]
    assert first["mismatch/max_ratio"] > 2
    stops = alone("early stop")["metrics"]
    assert any(metrics["policy/early_stop"] == 1.0 for metrics in stops)
    assert any(1 < metrics["policy/updates"] < 12 for metrics in stops)


@pytest.mark.parametrize(
    ("run", "same"),
    [
        ("even", "even"),
        ("uneven", "even"),
        ("one rank collected all", "even"),
        # Four samples in three minibatches: two of them hold a single sample, for one of the two ranks.
        ("an empty share", "an empty share"),
        ("tiny micro-batches", "even"),
        ("tiny chunks", "even"),
        ("whitened minibatches", "whitened minibatches"),
        ("own loss and estimator", "own loss and estimator"),
        ("early stop", "early stop"),
    ],
)
def test_two_ranks_make_the_updates_of_one(alone, two_ranks, run, same):
    for rank in two_ranks:
        assert_same_run(rank[run], alone(same), rel=1e-9)


def test_scoring_in_chunks_changes_nothing(alone):
    assert_same_run(train_with_tiny_chunks(), alone("even"), rel=1e-9)


def test_two_ranks_agree_with_one_in_float32(alone, two_ranks):
    [want] = alone("float32")["metrics"]
    for rank in two_ranks:
        for key in ("policy/loss", "critic/loss", "policy/grad_norm", "critic/grad_norm", "policy/entropy"):
            assert rank["float32"]["metrics"][0][key] == pytest.approx(want[key], rel=1e-5), key
        assert_same_weights(rank["float32"], alone("float32"), rel=1e-5)


def test_both_ranks_report_the_same_metrics_and_weights(two_ranks):
    first, second = two_ranks
    assert first["even"]["metrics"] == second["even"]["metrics"]
    assert all(torch.equal(w, second["even"]["actor"][name]) for name, w in first["even"]["actor"].items())


def test_imitation_on_two_ranks_has_the_losses_and_weights_of_one(one_rank, two_ranks):
    alone = imitate()
    for rank in two_ranks:
        assert rank["imitation"]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
        assert_same_weights(rank["imitation"], alone, rel=1e-9)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_both(two_ranks):
    for rank in two_ranks:
        result = rank["bad update"]
        assert math.isnan(result["norm"])
        assert result["updates"] == 1
        assert all(torch.equal(weight, result["after"][name]) for name, weight in result["before"].items())


def test_samples_arrive_whole_at_their_rank_in_the_order_of_their_index(two_ranks):
    sent = make_samples(5)
    assert [[s.index for s in rank["exchange"]["samples"]] for rank in two_ranks] == [[1, 4], [0, 2, 3]]
    for rank in two_ranks:
        for sample in rank["exchange"]["samples"]:
            original = sent[sample.index]
            assert sample.token_ids.tolist() == original.token_ids.tolist()
            assert sample.behavior_logprobs.tolist() == original.behavior_logprobs.tolist()
            assert sample.turn_steps.tolist() == original.turn_steps.tolist()
            assert (sample.terminated, sample.ending) == (original.terminated, original.ending)


def test_every_rank_gets_the_same_number_of_micro_batches_some_of_them_empty(two_ranks):
    groups = [[group.tolist() for group in rank["exchange"]["groups"]] for rank in two_ranks]
    assert len(groups[0]) == len(groups[1]) > 1
    assert groups[0][1:] == [[]] * (len(groups[0]) - 1)  # the rank with a generous limit needed one
    assert sorted(row for group in groups[1] for row in group) == [0, 1, 2]


def test_two_ranks_send_whole_weights_in_the_same_buckets(two_ranks):
    want = dict(make_lm().named_parameters())
    for rank in two_ranks:
        assert [name for bucket in rank["buckets"] for name, _ in bucket] == list(want)
        for bucket in rank["buckets"]:
            for name, tensor in bucket:
                assert torch.equal(tensor, want[name].detach())


def test_a_checkpoint_of_one_rank_goes_on_unchanged_on_two(saved_on_one, two_ranks):
    for rank in two_ranks:
        assert_continues(rank["loaded from one"], saved_on_one, rel=1e-9)


def test_a_checkpoint_of_two_ranks_goes_on_unchanged_on_one(one_rank, two_ranks, folders):
    loaded = load_then_train(str(folders["two"] / "000001"), EVERYTHING)
    assert_continues(loaded, two_ranks[0]["saved"], rel=1e-9)
