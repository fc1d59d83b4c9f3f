"""Turn-level and bi-level advantages, and the discount that acts between turns only."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.learner.gae import bilevel_advantages, gae_advantages, turn_advantages, turn_steps

F64 = torch.float64
BILEVEL = {"gamma_turn": 0.9, "lam_turn": 0.8, "gamma_token": 0.95, "lam_token": 0.7}


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=F64)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def three_turns(bootstrap: float) -> dict[str, Tensor]:
    """Turn 0: two tokens, reward 1. Turn 1: one token, no reward. Turn 2: two tokens, reward 2."""
    mask = torch.tensor([[0, 1, 1, 0, 1, 0, 0, 1, 1, 0]], dtype=torch.bool)
    return {
        "rewards": row(0, 0, 1, 0, 0, 0, 0, 0, 2, 0),
        "values": row(9, 0.5, 0.6, 9, 0.4, 9, 9, 0.3, 0.2, 9),
        "action_mask": mask,
        "turn_ids": torch.tensor([[7, 0, 0, -5, 1, 0, 0, 2, 2, -1]]),
        "bootstrap_value": torch.tensor([bootstrap], dtype=F64),
    }


def random_batch(seed: int, batch: int = 3, length: int = 16, max_gap: int = 2) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=g) < 0.6
    jumps = (torch.rand(batch, length, generator=g) < 0.4) * torch.randint(1, max_gap + 1, (batch, length), generator=g)
    return {
        "rewards": torch.randn(batch, length, generator=g, dtype=F64),
        "values": torch.randn(batch, length, generator=g, dtype=F64),
        "action_mask": mask,
        "turn_ids": jumps.cumsum(1),
        "bootstrap_value": torch.randn(batch, generator=g, dtype=F64),
    }


def slow_turns(batch: dict[str, Tensor], b: int) -> list[list[int]]:
    """Columns of each turn that has action tokens, in order."""
    turns: dict[int, list[int]] = {}
    for t in range(batch["action_mask"].shape[1]):
        if batch["action_mask"][b, t]:
            turns.setdefault(int(batch["turn_ids"][b, t]), []).append(t)
    return [turns[n] for n in sorted(turns)]


def slow_turn_level(batch, b, gamma, lam, reward_of_turn) -> list[float]:
    turns = slow_turns(batch, b)
    ids = [int(batch["turn_ids"][b, columns[0]]) for columns in turns]
    advantages = [0.0] * len(turns)
    next_value, next_advantage, next_id = float(batch["bootstrap_value"][b]), 0.0, (ids[-1] + 1 if ids else 0)
    for n in reversed(range(len(turns))):
        value, discount = float(batch["values"][b, turns[n][0]]), gamma ** (next_id - ids[n])
        next_advantage = reward_of_turn(turns[n]) + discount * next_value - value + discount * lam * next_advantage
        advantages[n], next_value, next_id = next_advantage, value, ids[n]
    return advantages


def slow_turn_advantages(batch, gamma, lam) -> Tensor:
    out = torch.zeros_like(batch["rewards"])
    for b in range(out.shape[0]):

        def total(columns, b=b):
            return float(batch["rewards"][b, columns].sum())

        for columns, advantage in zip(slow_turns(batch, b), slow_turn_level(batch, b, gamma, lam, total), strict=True):
            out[b, columns] = advantage
    return out


def slow_bilevel(batch, gamma_turn, lam_turn, gamma_token, lam_token) -> Tensor:
    out = torch.zeros_like(batch["rewards"])
    for b in range(out.shape[0]):

        def final(columns, b=b):
            return float(batch["rewards"][b, columns[-1]])

        levels = slow_turn_level(batch, b, gamma_turn, lam_turn, final)
        for columns, advantage in zip(slow_turns(batch, b), levels, strict=True):
            out[b, columns[-1]] = advantage
            for t, following in zip(reversed(columns[:-1]), reversed(columns[1:]), strict=True):
                delta = batch["rewards"][b, t] + gamma_token * batch["values"][b, following] - batch["values"][b, t]
                advantage = float(delta) + gamma_token * lam_token * advantage
                out[b, t] = advantage
    return out


# Literals. Turn level, gamma=.9, lam=.8 (gamma*lam=.72), V at first tokens .5, .4, .3.
# terminated: A_2 = 2-.3 = 1.7; A_1 = .27-.4+.72*1.7 = 1.094; A_0 = 1+.36-.5+.72*1.094 = 1.64768
# bootstrap 1: A_2 = 2+.9-.3 = 2.6; A_1 = -.13+.72*2.6 = 1.742; A_0 = .86+.72*1.742 = 2.11424


# Bi-level, gamma_token=.95, lam_token=.7 (product .665). One-step error of the first token of turn 0: .95*.6-.5 = .07,
# of turn 2: .95*.2-.3 = -.11.


@pytest.mark.parametrize(
    ("bootstrap", "first", "second", "third"),
    [(0.0, 1.64768, 1.094, 1.7), (1.0, 2.11424, 1.742, 2.6)],
    ids=["terminated", "truncated"],
)
def test_turn_and_bilevel_advantages_written_out(bootstrap, first, second, third):
    b = three_turns(bootstrap)
    close(turn_advantages(**b, gamma=0.9, lam=0.8), row(0, first, first, 0, second, 0, 0, third, third, 0))
    inside = 0.07 + 0.665 * first, -0.11 + 0.665 * third
    close(bilevel_advantages(**b, **BILEVEL), row(0, inside[0], first, 0, second, 0, 0, inside[1], third, 0))


def test_turn_advantages_of_a_turn_cut_in_mid_generation_do_not_discount_the_bootstrap():
    b = three_turns(1.0)
    steps = turn_steps(b["turn_ids"], b["action_mask"], mid_turn_cut=torch.tensor([True]))
    got = turn_advantages(**b, gamma=0.9, lam=0.8, steps=steps)
    close(got[:, -2:-1], row(2 + 1.0 - 0.3))


def test_a_step_ends_on_the_last_token_of_each_turn():
    b = three_turns(0.0)
    assert turn_steps(b["turn_ids"], b["action_mask"]).tolist() == [[0, 0, 1, 0, 1, 0, 0, 0, 1, 0]]
    cut = turn_steps(b["turn_ids"], b["action_mask"], mid_turn_cut=torch.tensor([True]))
    assert cut.tolist() == [[0, 0, 1, 0, 1, 0, 0, 0, 0, 0]]


def test_a_turn_without_action_tokens_counts_one_step():
    mask, ids = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1, 1, 4]])
    assert turn_steps(ids, mask).tolist() == [[0, 3, 1]]
    assert turn_steps(ids, mask, num_turns=torch.tensor([7])).tolist() == [[0, 3, 3]]
    # Turn 6 was begun and cut before its first token: two steps were completed after turn 4 began.
    cut = turn_steps(ids, mask, num_turns=torch.tensor([7]), mid_turn_cut=torch.tensor([True]))
    assert cut.tolist() == [[0, 3, 2]]


def test_steps_that_are_known_give_what_turn_ids_give():
    b = random_batch(5)
    steps = turn_steps(b["turn_ids"], b["action_mask"])
    known = b | {"turn_ids": torch.zeros_like(steps), "steps": steps}
    assert torch.equal(turn_advantages(**known, gamma=0.9, lam=0.8), turn_advantages(**b, gamma=0.9, lam=0.8))
    assert torch.equal(bilevel_advantages(**known, **BILEVEL), bilevel_advantages(**b, **BILEVEL))


def test_per_turn_discount_of_one_reward_counts_turns_not_words():
    mask = torch.ones(2, 6, dtype=torch.bool)
    rewards = torch.zeros(2, 6, dtype=F64)
    rewards[:, -1] = 1.0
    ids = torch.tensor([[0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1]])
    discount = 0.5 ** turn_steps(ids, mask).double()
    zero = torch.zeros_like(rewards)
    got = gae_advantages(rewards, zero, mask, torch.zeros(2, dtype=F64), discount=discount, lam=1.0)
    close(got, torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5, 1.0], [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]], dtype=F64))
    truncated = torch.full((2,), 4.0, dtype=F64)
    cut = torch.tensor([False, True])
    discount = 0.5 ** turn_steps(ids, mask, mid_turn_cut=cut).double()
    got = gae_advantages(zero, zero, mask, truncated, discount=discount, lam=1.0)
    close(got, torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 2.0], [2.0, 4.0, 4.0, 4.0, 4.0, 4.0]], dtype=F64))


# Oracle and properties


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 16), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_turn_and_bilevel_advantages_match_their_loops(seed, length, gamma, lam):
    b = random_batch(seed, length=length)
    close(turn_advantages(**b, gamma=gamma, lam=lam), slow_turn_advantages(b, gamma, lam))
    scalars = {"gamma_turn": gamma, "lam_turn": lam, "gamma_token": 0.9, "lam_token": 0.6}
    close(bilevel_advantages(**b, **scalars), slow_bilevel(b, **scalars))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_one_token_per_turn_makes_all_estimators_one(seed, gamma, lam):
    b = random_batch(seed)
    b["turn_ids"] = b["action_mask"].long().cumsum(1) - 1
    token_level = {k: x for k, x in b.items() if k != "turn_ids"}
    expected = gae_advantages(**token_level, discount=gamma, lam=lam)
    close(turn_advantages(**b, gamma=gamma, lam=lam), expected)
    got = bilevel_advantages(**b, gamma_turn=gamma, lam_turn=lam, gamma_token=0.3, lam_token=0.2)
    close(got, expected)


# Limits


def test_one_turn_is_one_decision():
    b = random_batch(1)
    b["turn_ids"] = torch.zeros_like(b["turn_ids"])
    got = turn_advantages(**b, gamma=0.9, lam=0.8)
    for i in range(3):
        columns = b["action_mask"][i].nonzero().flatten()
        expected = b["rewards"][i, columns].sum() + 0.9 * b["bootstrap_value"][i] - b["values"][i, columns[0]]
        close(got[i, columns], expected.expand(len(columns)))


def test_bilevel_with_token_lambda_zero_is_the_one_step_error_inside_turns():
    b = three_turns(0.0)
    got = bilevel_advantages(**b, **(BILEVEL | {"lam_token": 0.0}))
    close(got, row(0, 0.07, 1.64768, 0, 1.094, 0, 0, -0.11, 1.7, 0))


def test_rows_without_action_tokens_give_zeros():
    b = random_batch(2)
    b["action_mask"][1] = False
    assert not turn_advantages(**b, gamma=0.9, lam=0.8)[1].any()
    assert not bilevel_advantages(**b, **BILEVEL)[1].any()
    b["action_mask"][:] = False
    assert not turn_advantages(**b, gamma=0.9, lam=0.8).any()
    assert not bilevel_advantages(**b, **BILEVEL).any()


# Metamorphic


def test_junk_padding_and_row_order_change_nothing():
    b = random_batch(3)
    mask = b["action_mask"]
    dirty = b | {k: torch.where(mask, b[k], math.nan) for k in ("rewards", "values")}
    dirty["turn_ids"] = torch.where(mask, b["turn_ids"], -(10**6))
    padded = {k: torch.nn.functional.pad(x, (2, 3)) if x.ndim == 2 else x for k, x in b.items()}
    order = [2, 0, 1]
    for estimate in (
        lambda batch: turn_advantages(**batch, gamma=0.9, lam=0.8),
        lambda batch: bilevel_advantages(**batch, **BILEVEL),
        lambda batch: turn_steps(batch["turn_ids"], batch["action_mask"]),
    ):
        clean = estimate(b)
        assert clean.any() and torch.equal(estimate(dirty), clean)
        assert torch.equal(estimate(padded)[:, 2:-3], clean)
        assert torch.equal(estimate({k: x[order] for k, x in b.items()}), clean[order])


def test_a_reward_on_an_inner_token_reaches_its_turn_once():
    """KL shaping: at turn level it is part of R_n, at bi-level part of the token's own error."""
    b = three_turns(0.0)
    shaped = b | {"rewards": b["rewards"].clone()}
    shaped["rewards"][0, 1] = -0.5
    change = turn_advantages(**shaped, gamma=0.9, lam=0.8) - turn_advantages(**b, gamma=0.9, lam=0.8)
    close(change, row(0, -0.5, -0.5, 0, 0, 0, 0, 0, 0, 0))
    change = bilevel_advantages(**shaped, **BILEVEL) - bilevel_advantages(**b, **BILEVEL)
    close(change, row(0, -0.5, 0, 0, 0, 0, 0, 0, 0, 0))


def test_float32_follows_float64():
    b = random_batch(4)
    single = {k: x.float() if x.is_floating_point() else x for k, x in b.items()}
    for got, expected in [
        (turn_advantages(**single, gamma=0.9, lam=0.8), turn_advantages(**b, gamma=0.9, lam=0.8)),
        (bilevel_advantages(**single, **BILEVEL), bilevel_advantages(**b, **BILEVEL)),
    ]:
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turn_ids": torch.zeros(1, 10)}, "turn_ids must be integers"),
        ({"turn_ids": torch.zeros(1, 9, dtype=torch.long)}, "turn_ids must be integers"),
        ({"turn_ids": torch.tensor([[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]])}, "must not decrease"),
        ({"turn_ids": torch.full((1, 10), -1)}, "turn_ids must lie in"),
        ({"gamma": 1.01}, "gamma must lie in"),
        ({"lam": -0.1}, "lam must lie in"),
    ],
)
def test_wrong_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        turn_advantages(**(three_turns(0.0) | {"gamma": 0.9, "lam": 0.8} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_turns": torch.tensor([2])}, "turn_ids must lie in"),
        ({"num_turns": torch.tensor([3.0])}, "num_turns must be integer"),
        ({"mid_turn_cut": torch.tensor([1])}, "mid_turn_cut must be bool"),
    ],
)
def test_wrong_counts_of_turns_are_named(change, message):
    b = three_turns(0.0)
    with pytest.raises(ValueError, match=message):
        turn_steps(b["turn_ids"], b["action_mask"], **change)


@pytest.mark.parametrize("name", sorted(BILEVEL))
def test_bilevel_rejects_each_coefficient_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        bilevel_advantages(**three_turns(0.0), **(BILEVEL | {name: 1.5}))
