"""From trajectories to arrays: nothing is lost, and what cannot be trained on is refused in one clear sentence."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tiny_learner import CPU, make_samples, make_trajectory

from envgym.learner.batch import collate, make_sample
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
    assert sample.index == 3
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9]
    assert sample.action_mask.tolist() == [False, False, True, True, False, True, False, False]
    assert sample.turn_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sample.behavior_logprobs.tolist() == [0, 0, -0.1, -0.2, 0, -0.3, 0, 0]
    assert sample.step_rewards.tolist() == [0.5, -1.0]
    assert (sample.terminated, sample.mid_turn_cut, sample.ending, sample.support) == (True, False, "terminated", None)


def test_a_truncation_is_not_terminated_and_keeps_its_reason():
    sample = make_sample(truncated(TruncationReason.TIME_LIMIT), 0)
    assert (sample.terminated, sample.mid_turn_cut, sample.ending) == (False, False, "time_limit")


@pytest.mark.parametrize(("finish", "reason"), [("length", "response_length"), ("context", "context_overflow")])
def test_a_turn_cut_in_mid_generation_is_marked(finish, reason):
    cut = with_turn(1, executed=False, finish_reason=finish, reward=0.0)
    sample = make_sample(
        dataclasses.replace(
            cut, terminated=False, truncated=True, truncation_reason=TruncationReason(reason), final_observation_ids=()
        ),
        0,
    )
    assert sample.mid_turn_cut and not sample.terminated and sample.ending == reason


def test_a_cut_turn_whose_limit_belongs_to_the_task_is_terminated():
    cut = with_turn(1, executed=False, finish_reason="length", reward=0.0)
    sample = make_sample(dataclasses.replace(cut, final_observation_ids=()), 0)
    assert sample.terminated


def test_a_context_overflow_between_turns_is_no_mid_turn_cut():
    sample = make_sample(truncated(TruncationReason.CONTEXT_OVERFLOW), 0)
    assert not sample.mid_turn_cut and not sample.terminated


def test_a_context_that_is_full_to_the_last_token_needs_no_final_observation():
    full = truncated(TruncationReason.CONTEXT_OVERFLOW, final_observation_ids=())
    sample = make_sample(full, 0)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert not sample.mid_turn_cut


def test_every_other_truncation_without_final_tokens_is_refused():
    with pytest.raises(ValueError, match=r"t/E-v0 \(seed 7\) was truncated but has no tokens of its final observation"):
        make_sample(truncated(final_observation_ids=()), 0)


def test_a_terminated_trajectory_needs_no_final_tokens():
    assert make_sample(dataclasses.replace(ENDED, final_observation_ids=()), 0).length == 6


def test_a_failed_episode_is_refused_with_its_failure():
    failed = dataclasses.replace(ENDED, terminated=False, failure="OSError: gone")
    with pytest.raises(ValueError, match=r"failed \(OSError: gone\); leave failed episodes out"):
        make_sample(failed, 0)


def test_an_episode_without_tokens_is_refused():
    bare = dataclasses.replace(ENDED, turns=(Turn("a", "x", 1.0),), final_observation_ids=())
    with pytest.raises(ValueError, match=r"has no action token.*agent without tokens"):
        make_sample(bare, 0)


def test_an_episode_that_begins_with_a_sampled_token_is_refused():
    with pytest.raises(ValueError, match="begins with a sampled token"):
        make_sample(with_turn(0, observation_ids=()), 0)


def test_missing_logprobs_are_refused_and_counted():
    with pytest.raises(ValueError, match="turn 0 has 2 action tokens but 1 log-probabilities"):
        make_sample(with_turn(0, behavior_logprobs=(-0.1,)), 0)


@pytest.mark.parametrize("changes", [{"reward": math.nan}, {"reward": math.inf}, {"behavior_logprobs": (-math.inf,)}])
def test_numbers_that_are_not_finite_are_refused(changes):
    with pytest.raises(ValueError, match="not finite"):
        make_sample(with_turn(1, **changes), 0)


def test_a_support_for_some_tokens_only_is_refused():
    with pytest.raises(ValueError, match="sampling support for only 1 of 3 action tokens"):
        make_sample(with_turn(1, support=((6, 7),)), 0)


def test_every_message_is_one_line():
    for bad in (with_turn(1, reward=math.nan), truncated(final_observation_ids=()), with_turn(0, behavior_logprobs=())):
        with pytest.raises(ValueError) as caught:
            make_sample(bad, 0)
        assert "\n" not in str(caught.value)


def test_rewards_sit_on_the_last_action_token_of_their_turn_and_are_conserved():
    samples = [make_sample(ENDED, 0), *make_samples()]
    batch = collate(samples, dtype=torch.float64, device=CPU)
    assert batch.rewards[0, :8].tolist() == [0, 0, 0, 0.5, 0, -1.0, 0, 0]
    for row, sample in enumerate(samples):
        assert batch.rewards[row].sum().item() == pytest.approx(sample.step_rewards.sum(), abs=1e-12)
    assert (batch.rewards[~batch.action_mask] == 0).all()


def test_the_reward_of_a_turn_without_tokens_moves_to_the_action_before():
    turns = (TURNS[0], Turn("b", "", 0.25, observation_ids=(5,)))
    batch = collate([make_sample(dataclasses.replace(ENDED, turns=turns), 0)], dtype=torch.float64, device=CPU)
    assert batch.rewards[0].nonzero().flatten().tolist() == [3]
    assert batch.rewards[0, 3].item() == 0.75


def test_a_batch_is_padded_on_the_right_and_says_how_long_its_rows_are():
    short = dataclasses.replace(ENDED, turns=TURNS[:1], final_observation_ids=())
    batch = collate([make_sample(short, 0), make_sample(ENDED, 1)], dtype=torch.float32, device=CPU)
    assert batch.token_ids[0].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    assert batch.lengths.tolist() == [4, 8]
    assert batch.num_turns.tolist() == [1, 2]
    assert batch.action_mask[0].tolist() == [False, False, True, True, False, False, False, False]
    assert torch.equal(batch.loss_mask, batch.action_mask)
    assert batch.behavior_logprobs.dtype == torch.float32


def test_a_rank_without_samples_gets_an_empty_batch():
    batch = collate([], dtype=torch.float64, device=CPU)
    assert batch.size == 0
    assert batch.token_ids.shape == batch.rewards.shape == (0, 1)
    assert batch.bootstrap_value.shape == (0,)


def test_supports_are_padded_and_a_turn_without_one_stands_for_the_whole_vocabulary():
    cut = make_sample(
        dataclasses.replace(
            ENDED,
            turns=(
                dataclasses.replace(TURNS[0], support=((3, 30), (4,))),
                dataclasses.replace(TURNS[1], support=((6, 60, 61),)),
            ),
        ),
        0,
    )
    batch = collate([cut, make_sample(ENDED, 1)], dtype=torch.float64, device=CPU)
    assert batch.supports.shape == (2, 8, 3)
    assert batch.supports[0, [2, 3, 5]].tolist() == [[3, 30, -1], [4, -1, -1], [6, 60, 61]]
    assert (batch.supports[1] == -1).all()
    assert collate([make_sample(ENDED, 0)], dtype=torch.float64, device=CPU).supports is None


def test_a_sample_survives_json_and_pickle():
    import pickle

    trajectory = make_trajectory(5, ending="max_turns")
    direct = make_sample(trajectory, 0)
    back = pickle.loads(pickle.dumps(make_sample(Trajectory.from_json(trajectory.to_json()), 0)))
    for name in ("token_ids", "action_mask", "turn_ids", "behavior_logprobs", "step_rewards"):
        assert np.array_equal(getattr(direct, name), getattr(back, name)), name
