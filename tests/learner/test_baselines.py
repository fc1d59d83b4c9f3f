"""Critic-free advantages of whole trajectories."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.baselines import group_advantages

F64 = torch.float64
KINDS = ["grpo", "dr_grpo", "rloo", "reinforce_pp"]
# Group 5: rewards 1, 2, 6 (mean 3, variance 14/3). Group -2: 0, 4 (mean 2, std 2). Group 9: one trajectory, reward 7.
REWARDS = torch.tensor([1.0, 0.0, 2.0, 7.0, 6.0, 4.0], dtype=F64)
GROUPS = torch.tensor([5, -2, 5, 9, 5, -2])
STD = math.sqrt(14 / 3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", [-2 / STD, -1, -1 / STD, 0, 3 / STD, 1]),
        ("dr_grpo", [-2, -2, -1, 0, 3, 2]),
        ("rloo", [1 - 4, 0 - 4, 2 - 3.5, 0, 6 - 1.5, 4 - 0]),
        ("reinforce_pp", [(r - 10 / 3) / statistics.pstdev([1, 0, 2, 7, 6, 4]) for r in [1, 0, 2, 7, 6, 4]]),
    ],
)
def test_three_groups_one_of_them_of_one(kind, expected):
    got = group_advantages(REWARDS, GROUPS, kind)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=F64), rtol=1e-6, atol=1e-9)


def slow(rewards: list[float], groups: list[int], kind: str) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        if kind == "reinforce_pp":
            group = rewards
        else:
            group = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        mean, std = statistics.fmean(group), statistics.pstdev(group)
        if kind == "rloo":
            others = len(group) - 1
            out.append(reward - (sum(group) - reward) / others if others else 0.0)
        else:
            out.append((reward - mean) / (1.0 if kind == "dr_grpo" else std + 1e-8))
    return out


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 3)), min_size=1, max_size=12),
    kind=st.sampled_from(KINDS),
)
def test_any_batch_matches_the_loop_in_any_order_under_any_labels(data, kind):
    rewards, groups = torch.tensor([float(r) for r, _ in data], dtype=F64), torch.tensor([g for _, g in data])
    got = group_advantages(rewards, groups, kind)
    expected = torch.tensor(slow(rewards.tolist(), groups.tolist(), kind), dtype=F64)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(group_advantages(rewards.flip(0), groups.flip(0), kind).flip(0), got)
    assert torch.equal(group_advantages(rewards, -1000 * groups + 3, kind).abs() > 1e-9, got.abs() > 1e-9)
    torch.testing.assert_close(group_advantages(rewards + 4, groups, kind), got)
    assert got.sum().item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e9 + 0.1])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_equal_rewards_and_groups_of_one_have_advantage_exactly_zero(kind, value, size):
    rewards = torch.full((size,), value, dtype=F64)
    assert torch.equal(
        group_advantages(rewards, torch.zeros(size, dtype=torch.long), kind), torch.zeros(size, dtype=F64)
    )
    if kind != "reinforce_pp":
        mixed = torch.arange(size, dtype=F64) + value
        assert not group_advantages(mixed, torch.arange(size), kind).any()


def test_another_group_changes_nothing_except_for_the_batch_baseline():
    more, ids = torch.cat([REWARDS, torch.tensor([100.0], dtype=F64)]), torch.cat([GROUPS, torch.tensor([77])])
    for kind in KINDS:
        unchanged = torch.equal(group_advantages(more, ids, kind)[:6], group_advantages(REWARDS, GROUPS, kind))
        assert unchanged == (kind != "reinforce_pp")


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_kept_and_an_empty_batch_is_empty(kind):
    got = group_advantages(REWARDS.float(), GROUPS, kind)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), group_advantages(REWARDS, GROUPS, kind), rtol=1e-5, atol=1e-6)
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long), kind).tolist() == []


@pytest.mark.parametrize(
    ("rewards", "groups", "kind", "message"),
    [
        (REWARDS[None], GROUPS[None], "grpo", "rewards must be float32 or float64"),
        (REWARDS.long(), GROUPS, "grpo", "rewards must be float32 or float64"),
        (REWARDS, GROUPS.double(), "grpo", "group_ids must be integers"),
        (REWARDS, GROUPS[:5], "grpo", "group_ids must be integers"),
        (REWARDS * math.nan, GROUPS, "grpo", "rewards must be finite"),
        (REWARDS, GROUPS, "remax", "Unknown baseline 'remax'. Use one of grpo"),
    ],
)
def test_wrong_input_is_named(rewards, groups, kind, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, groups, kind)
