"""Where the reward of an environment step goes, and that none is lost on the way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.gae import place_rewards

MASK = torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1, 0]], dtype=torch.bool)
IDS = torch.tensor([[-1, 0, 0, 9, 1, 9, 2, 2, 9]])


@pytest.mark.parametrize(
    ("rewards", "ids", "mask", "expected"),
    [
        ([1.0, 2.0, 4.0], IDS[0].tolist(), MASK[0].tolist(), [0, 0, 1, 0, 2, 0, 0, 4, 0]),
        ([1.0, 2.0, 4.0, 8.0, 16.0], [0, 0, 1, 3], [1, 1, 0, 1], [0, 1 + 2 + 4, 0, 8 + 16]),  # to the token before
        ([1.0, 2.0, 4.0], [0, 2, 2], [0, 1, 1], [0, 1 + 2, 4]),  # no token before: to the first one after
    ],
)
def test_a_reward_sits_on_the_last_action_token_of_its_turn_or_else_on_the_nearest(rewards, ids, mask, expected):
    got = place_rewards(torch.tensor([rewards]), torch.tensor([ids]), torch.tensor([mask], dtype=torch.bool))
    assert got.tolist() == [expected]


def test_a_reward_without_any_action_token_is_an_error_and_no_reward_is_not():
    mask = torch.tensor([[True], [False]])
    ids = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"Rows \[1\] have a reward but no action token"):
        place_rewards(torch.tensor([[1.0], [0.5]]), ids, mask)
    with pytest.raises(ValueError, match=r"Rows \[1\]"):
        place_rewards(torch.tensor([[1.0, 0.0], [0.5, -0.5]]), ids, mask)  # sums to zero, still a reward
    assert place_rewards(torch.tensor([[1.0], [0.0]]), ids, mask).tolist() == [[1.0], [0.0]]


def slow_place(step_rewards, ids, mask):
    out = [[0.0] * len(mask[0]) for _ in mask]
    for b, rewards in enumerate(step_rewards):
        actions = [t for t in range(len(mask[b])) if mask[b][t]]
        for n, reward in enumerate(rewards):
            if actions and reward:
                before = [t for t in actions if ids[b][t] <= n]
                out[b][before[-1] if before else actions[0]] += reward
    return out


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_layout_matches_the_loop_and_conserves_every_row(data):
    batch, length, num_turns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 10)), data.draw(st.integers(1, 6))
    mask = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch))
    )
    ids = torch.tensor(
        [
            sorted(data.draw(st.lists(st.integers(0, num_turns - 1), min_size=length, max_size=length)))
            for _ in range(batch)
        ]
    )
    reward = st.integers(-8, 8).map(lambda k: k / 4)  # exact in binary, so sums are exact too
    rewards = torch.tensor([data.draw(st.lists(reward, min_size=num_turns, max_size=num_turns)) for _ in range(batch)])
    rewards[~mask.any(dim=1)] = 0.0
    got = place_rewards(rewards, ids, mask)
    assert got.tolist() == slow_place(rewards.tolist(), ids.tolist(), mask.tolist())
    assert got.sum(dim=1).tolist() == rewards.sum(dim=1).tolist()
    assert not got[~mask].any()
    # Junk ids at masked positions, padding, unused turns and row order change nothing.
    junk = torch.where(mask, ids, 10**6)
    assert torch.equal(place_rewards(rewards, junk, mask), got)
    pad = torch.nn.functional.pad
    wide = place_rewards(pad(rewards, (0, 2)), pad(ids, (2, 3), value=-1), pad(mask, (2, 3)))
    assert torch.equal(wide[:, 2:-3], got) and not wide[:, :2].any() and not wide[:, -3:].any()
    assert torch.equal(place_rewards(rewards.flip(0), ids.flip(0), mask.flip(0)), got.flip(0))


def test_dtype_is_kept_and_many_small_rewards_meet_without_loss():
    rewards = torch.full((1, 1000), 0.1)
    mask, ids = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.long)
    got = place_rewards(rewards, ids, mask)
    assert got.dtype == torch.float32 and got.item() == pytest.approx(rewards.double().sum().item(), rel=1e-7)
    double = place_rewards(rewards.double(), ids, mask)
    assert double.dtype == torch.float64 and double.item() == pytest.approx(100.0, rel=1e-6)


def test_no_turns_and_no_tokens_give_no_rewards():
    empty_ids, empty_mask = torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool)
    assert place_rewards(torch.zeros(2, 3), empty_ids, empty_mask).tolist() == [[], []]
    ids, mask = torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4, dtype=torch.bool)
    assert not place_rewards(torch.zeros(2, 0), ids, mask).any()


@pytest.mark.parametrize(
    ("rewards", "ids", "mask", "message"),
    [
        (torch.zeros(1, 3, dtype=torch.long), IDS, MASK, "step_rewards must be float32 or float64"),
        (torch.zeros(3), IDS, MASK, "step_rewards must be float32 or float64"),
        (torch.zeros(2, 3), IDS, MASK, "must match"),
        (torch.tensor([[1.0, math.nan, 0.0]]), IDS, MASK, "must be finite"),
        (torch.zeros(1, 2), IDS, MASK, "turn_ids must lie in"),
        (torch.zeros(1, 3), IDS.float(), MASK, "turn_ids must be integers"),
        (torch.zeros(1, 3), IDS.flip(1), MASK.flip(1), "must not decrease"),
        (torch.zeros(1, 3), IDS, MASK.long(), "action_mask must be a bool"),
    ],
)
def test_wrong_input_is_named(rewards, ids, mask, message):
    with pytest.raises(ValueError, match=message):
        place_rewards(rewards, ids, mask)
