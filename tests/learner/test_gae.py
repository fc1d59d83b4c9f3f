"""Token-level GAE: golden numbers, a loop oracle, limits, metamorphic and property tests."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.learner.gae import decoupled_gae, gae_advantages, length_adaptive_lambda

F64 = torch.float64


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=F64)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def slow_gae(rewards, values, mask, bootstrap, discount, lam) -> list[list[float]]:
    """The recurrence written out, one row and one token at a time, on nested lists."""
    out = []
    for b in range(len(mask)):
        advantages = [0.0] * len(mask[b])
        next_value, next_advantage = bootstrap[b], 0.0
        for t in reversed(range(len(mask[b]))):
            if mask[b][t]:
                delta = rewards[b][t] + discount[b][t] * next_value - values[b][t]
                next_advantage = delta + discount[b][t] * lam[b][t] * next_advantage
                advantages[t], next_value = next_advantage, values[b][t]
        out.append(advantages)
    return out


def random_batch(seed: int, batch: int = 4, length: int = 17, density: float = 0.6) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "rewards": torch.randn(batch, length, generator=g, dtype=F64),
        "values": torch.randn(batch, length, generator=g, dtype=F64),
        "action_mask": torch.rand(batch, length, generator=g) < density,
        "bootstrap_value": torch.randn(batch, generator=g, dtype=F64),
    }


# Literals


@pytest.mark.parametrize(
    ("bootstrap", "expected"),
    [
        (0.6, [1.246793, 1.620546, 2.153536, 1.5188, 2.04]),  # truncated
        (0.0, [1.101674, 1.418992, 1.8736, 1.13, 1.5]),  # terminated
    ],
)
def test_five_tokens_written_out(bootstrap, expected):
    rewards, values, mask = row(0, 0, 1, 0, 2), row(0.1, 0.2, 0.3, 0.4, 0.5), torch.ones(1, 5, dtype=torch.bool)
    got = gae_advantages(rewards, values, mask, torch.tensor([bootstrap], dtype=F64), discount=0.9, lam=0.8)
    close(got, row(*expected), 1e-6)


@pytest.mark.parametrize("observation_value", [0.0, 0.5, -3.0, math.nan, math.inf])
def test_credit_crosses_observations_without_decay(observation_value):
    mask = torch.zeros(1, 600, dtype=torch.bool)
    mask[0, :50] = mask[0, 550:] = True
    values = torch.where(mask, torch.tensor(0.5, dtype=F64), torch.tensor(observation_value, dtype=F64))
    rewards = torch.zeros(1, 600, dtype=F64)
    rewards[0, 599] = 1.0
    advantages = gae_advantages(rewards, values, mask, torch.zeros(1, dtype=F64), discount=1.0, lam=0.95)
    assert advantages[0, 49].item() == pytest.approx(0.0384725, abs=1e-7)
    assert advantages[0, 49].item() == pytest.approx(0.5 * 0.95**50, rel=1e-12)
    assert not advantages[0, 50:550].any()


@pytest.mark.parametrize(("bootstrap", "first", "last"), [(0.9, 0.4, 0.0), (0.0, -0.5, -0.9)])
def test_a_rising_value_is_credited_when_truncated_and_debited_when_terminated(bootstrap, first, last):
    values, mask = torch.linspace(0.5, 0.9, 100, dtype=F64)[None], torch.ones(1, 100, dtype=torch.bool)
    bootstrap = torch.tensor([bootstrap], dtype=F64)
    got = gae_advantages(torch.zeros_like(values), values, mask, bootstrap, discount=1.0, lam=1.0)[0]
    assert (got[0].item(), got[99].item()) == (pytest.approx(first), pytest.approx(last, abs=1e-12))


def test_decoupled_targets_are_returns_while_advantages_use_their_own_lambda():
    mask = torch.tensor([[True, False, True]])
    rewards, values = row(1, 9, 2), row(0.5, 9, 0.25)
    for bootstrap, advantages, targets in [
        (0.0, [0.75 + 0.5 * 1.75, 0, 1.75], [3.0, 0, 2.0]),  # terminated
        (4.0, [0.75 + 0.5 * 5.75, 0, 5.75], [7.0, 0, 6.0]),  # truncated
    ]:
        got = decoupled_gae(
            rewards, values, mask, torch.tensor([bootstrap], dtype=F64), discount=1.0, lam_policy=0.5, lam_value=1.0
        )
        close(got[0], row(*advantages))
        close(got[1], row(*targets))


def test_length_adaptive_lambda_at_hand_computed_lengths():
    lengths = torch.tensor([0, 1, 20, 21, 100, 1000])
    got = length_adaptive_lambda(lengths, alpha=0.05, lambda_min=0.0)
    torch.testing.assert_close(got, torch.tensor([0, 0, 0, 1 / 21, 0.8, 0.98]))
    floored = length_adaptive_lambda(lengths.double(), alpha=0.05, lambda_min=0.9)
    close(floored, torch.tensor([0.9, 0.9, 0.9, 0.9, 0.9, 0.98], dtype=F64))


# Oracle


@pytest.mark.parametrize("seed", range(5))
def test_matches_the_loop_with_scalar_row_and_token_coefficients(seed):
    batch = random_batch(seed)
    g = torch.Generator().manual_seed(100 + seed)
    shape = batch["rewards"].shape
    for discount, lam in [
        (0.9, 0.7),
        (torch.rand(shape[0], generator=g, dtype=F64), torch.rand(shape[0], generator=g, dtype=F64)),
        (torch.rand(shape, generator=g, dtype=F64), torch.rand(shape, generator=g, dtype=F64)),
        (0.9, torch.rand(shape, generator=g)),
    ]:

        def full(x):
            x = torch.as_tensor(x, dtype=F64)
            return (x[:, None] if x.ndim == 1 else x).expand(shape).tolist()

        expected = slow_gae(*(batch[key].tolist() for key in batch), full(discount), full(lam))
        close(gae_advantages(**batch, discount=discount, lam=lam), torch.tensor(expected, dtype=F64))


# Limits


def test_lambda_zero_is_the_one_step_error():
    b = random_batch(1, density=1.0)
    following = torch.cat([b["values"][:, 1:], b["bootstrap_value"][:, None]], dim=1)
    close(gae_advantages(**b, discount=0.9, lam=0.0), b["rewards"] + 0.9 * following - b["values"])


def test_lambda_one_is_the_monte_carlo_return_minus_the_value():
    b = random_batch(2, density=1.0)
    length = b["rewards"].shape[1]
    returns = torch.zeros_like(b["rewards"])
    for t in range(length):
        weights = 0.9 ** torch.arange(length - t, dtype=F64)
        returns[:, t] = (b["rewards"][:, t:] * weights).sum(1) + 0.9 ** (length - t) * b["bootstrap_value"]
    close(gae_advantages(**b, discount=0.9, lam=1.0), returns - b["values"])


def test_a_row_without_action_tokens_gives_zeros_and_leaves_the_others_alone():
    b = random_batch(4)
    whole = gae_advantages(**b, discount=0.9, lam=0.8)
    b["action_mask"][1] = False
    got = gae_advantages(**b, discount=0.9, lam=0.8)
    assert not got[1].any()
    assert torch.equal(got[[0, 2, 3]], whole[[0, 2, 3]])
    empty = torch.zeros(2, 0, dtype=F64)
    assert gae_advantages(empty, empty, empty.bool(), torch.ones(2, dtype=F64), discount=1.0, lam=1.0).numel() == 0


def test_a_long_trajectory_keeps_float32_accuracy():
    length = 20_000
    rewards, values = torch.full((1, length), 0.1), torch.zeros(1, length)
    mask = torch.ones(1, length, dtype=torch.bool)
    got = gae_advantages(rewards, values, mask, torch.zeros(1), discount=1.0, lam=1.0)
    assert got.dtype == torch.float32
    assert got[0, 0].item() == pytest.approx(rewards.double().sum().item(), rel=1e-7)


def test_targets_keep_the_digits_of_small_rewards_under_large_values():
    values, mask = torch.tensor([[1e6, 1e6]]), torch.ones(1, 2, dtype=torch.bool)
    _, targets = decoupled_gae(torch.tensor([[0.0, 0.125]]), values, mask, torch.zeros(1), discount=1.0, lam_policy=0.9)
    assert targets.tolist() == [[0.125, 0.125]]


# Metamorphic


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_junk_padding_and_the_other_rows_change_nothing(junk):
    coefficients = {"discount": torch.full((4, 17), 0.9, dtype=F64), "lam": torch.full((4, 17), 0.8, dtype=F64)}
    b = random_batch(5) | coefficients
    clean = gae_advantages(**b)
    dirty = {k: torch.where(b["action_mask"], b[k], junk) for k in ("rewards", "values", "discount", "lam")}
    assert torch.equal(gae_advantages(**(b | dirty)), clean)
    padded = {k: torch.nn.functional.pad(x, (3, 5), value=0) if x.ndim == 2 else x for k, x in b.items()}
    assert torch.equal(gae_advantages(**padded)[:, 3:-5], clean)
    for rows in ([2, 0, 3, 1], [0], [1], [2], [3]):
        assert torch.equal(gae_advantages(**{k: x[rows] for k, x in b.items()}), clean[rows])


def test_a_folded_trajectory_laid_end_to_end_equals_the_unfolded_one():
    """Segments repeat a prompt and a summary as masked tokens; the last action of one bootstraps from the next."""
    b = random_batch(8, batch=1, length=12, density=1.0)
    whole = gae_advantages(**b, discount=0.9, lam=0.8)
    summary = torch.full((1, 6), 99.0, dtype=F64)
    folded = {k: torch.cat([b[k][:, :7], summary, b[k][:, 7:]], dim=1) for k in ("rewards", "values")}
    folded["action_mask"] = torch.ones(1, 18, dtype=torch.bool)
    folded["action_mask"][:, 7:13] = False
    got = gae_advantages(**folded, bootstrap_value=b["bootstrap_value"], discount=0.9, lam=0.8)
    close(got[:, :7], whole[:, :7])
    close(got[:, 13:], whole[:, 7:])
    # With lam = 0 the first segment alone, bootstrapped by hand from the next first action state, is the same thing.
    first = {k: b[k][:, :7] for k in ("rewards", "values", "action_mask")}
    alone = gae_advantages(**first, bootstrap_value=b["values"][:, 7], discount=0.9, lam=0.0)
    close(alone, gae_advantages(**folded, bootstrap_value=b["bootstrap_value"], discount=0.9, lam=0.0)[:, :7])


def test_float32_follows_float64_and_no_gradient_flows():
    b = random_batch(9)
    single = {k: x.float() if x.is_floating_point() else x for k, x in b.items()}
    single["values"] = single["values"].clone().requires_grad_()
    got = gae_advantages(**single, discount=0.9, lam=0.8)
    assert got.dtype == torch.float32 and not got.requires_grad
    close(got.double(), gae_advantages(**b, discount=0.9, lam=0.8), 1e-5)


# Properties


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 12),
    density=st.floats(0, 1),
    discount=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_any_batch_matches_the_loop_and_is_linear_in_rewards(seed, length, density, discount, lam):
    b = random_batch(seed, batch=3, length=length, density=density)
    got = gae_advantages(**b, discount=discount, lam=lam)
    table = [[discount] * length] * 3, [[lam] * length] * 3
    close(got, torch.tensor(slow_gae(*(b[k].tolist() for k in b), *table), dtype=F64))
    zeros = {k: torch.zeros_like(b[k]) for k in ("values", "bootstrap_value")}
    only_rewards = gae_advantages(**(b | zeros), discount=discount, lam=lam)
    only_values = gae_advantages(**(b | {"rewards": torch.zeros_like(b["rewards"])}), discount=discount, lam=lam)
    close(only_rewards + only_values, got)


@given(length=st.integers(21, 10**6), alpha=st.floats(0.05, 1))
def test_length_adaptive_lambda_makes_the_weights_sum_to_alpha_times_length(length, alpha):
    lam = length_adaptive_lambda(torch.tensor([length], dtype=F64), alpha=alpha, lambda_min=0.0).item()
    assert 1 / (1 - lam) == pytest.approx(alpha * length, rel=1e-6)


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_mask": torch.ones(4, 17)}, "action_mask must be a bool"),
        ({"rewards": torch.zeros(4, 17, dtype=torch.int64)}, "rewards must be float32 or float64"),
        ({"rewards": torch.zeros(4, 17, dtype=torch.bfloat16)}, r"rewards\.float\(\)"),
        ({"values": torch.zeros(4, 16, dtype=F64)}, "values must have the shape"),
        ({"values": torch.zeros(4, 17)}, "one dtype"),
        ({"bootstrap_value": torch.zeros(4, 1, dtype=F64)}, "one value per trajectory"),
        ({"discount": 1.5}, "discount must lie in"),
        ({"lam": torch.zeros(5)}, r"lam must be a float, \[B\] or \[B, T\]"),
        ({"lam": math.nan}, "lam must lie in"),
    ],
)
def test_wrong_input_is_named(change, message):
    b = random_batch(10) | {"discount": 0.9, "lam": 0.8} | change
    with pytest.raises(ValueError, match=message):
        gae_advantages(**b)


def test_length_adaptive_lambda_rejects_what_it_cannot_mean():
    for lengths, alpha, floor in [([-1], 0.05, 0.0), ([10], 0.0, 0.0), ([10], 0.05, 1.1), ([10], math.nan, 0.0)]:
        with pytest.raises(ValueError):
            length_adaptive_lambda(torch.tensor(lengths), alpha=alpha, lambda_min=floor)
