"""Aggregation of per-token losses: the four modes, and that no split of the batch changes the gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.losses import aggregate

F64 = torch.float64
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
JUNK = st.sampled_from([math.nan, math.inf, -math.inf, 1e30])
# Rows: 1 + 2 + 3 = 6 over 3 tokens; 10 over 1 token; nothing valid.
X = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]], dtype=F64)
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 16 / 4),
        ("seq-mean-token-sum", 16 / 2),
        ("seq-mean-token-mean", (6 / 3 + 10 / 1) / 2),
        ("seq-mean-token-sum-norm", 16 / (2 * 3)),
    ],
)
def test_each_mode_on_three_rows_one_of_them_empty(mode, expected):
    assert aggregate(X, MASK, aggregation=mode).item() == pytest.approx(expected)


def test_norm_length_is_the_constant_divisor_of_dr_grpo_and_of_nothing_else():
    eight = aggregate(X, MASK, aggregation="seq-mean-token-sum-norm", norm_length=8).item()
    assert eight == pytest.approx(16 / (2 * 8))
    half = aggregate(X, MASK, aggregation="seq-mean-token-sum-norm", norm_length=0.5).item()
    assert half == pytest.approx(16 / (2 * 0.5))
    for mode in MODES[:3]:
        assert aggregate(X, MASK, aggregation=mode, norm_length=8) == aggregate(X, MASK, aggregation=mode)


def test_global_denominators_replace_the_local_counts():
    assert aggregate(X, MASK, aggregation="token-mean", num_tokens=64).item() == 16 / 64
    assert aggregate(X, MASK, aggregation="token-mean", num_tokens=torch.tensor(64)).item() == 16 / 64
    assert aggregate(X, MASK, aggregation="seq-mean-token-sum", num_sequences=8).item() == 16 / 8
    assert aggregate(X, MASK, aggregation="seq-mean-token-mean", num_sequences=8).item() == 12 / 8
    got = aggregate(X, MASK, aggregation="seq-mean-token-sum-norm", num_sequences=8, norm_length=4)
    assert got.item() == 16 / 32


def slow_aggregate(x, mask, mode, norm_length):
    rows = [[v for v, m in zip(row, valid, strict=True) if m] for row, valid in zip(x, mask, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if mode == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if mode == "seq-mean-token-sum":
        return sum(map(sum, rows)) / len(rows)
    if mode == "seq-mean-token-mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(sum(row) / norm_length for row in rows) / len(rows)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), mode=st.sampled_from(MODES), cut=st.integers(0, 5), density=st.floats(0, 1), junk=JUNK
)
def test_micro_batches_have_the_loss_and_gradient_of_the_whole_batch_whatever_is_masked(seed, mode, cut, density, junk):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, 7, generator=g) < density
    data = torch.randn(5, 7, generator=g, dtype=F64)

    def spoiled(x, valid):
        """The losses, with junk wherever nothing is valid."""
        return torch.where(valid, x.square(), junk)

    whole = data.clone().requires_grad_()
    loss = aggregate(spoiled(whole, mask), mask, aggregation=mode, norm_length=11)
    loss.backward()
    assert loss.item() == pytest.approx(slow_aggregate(data.square().tolist(), mask.tolist(), mode, 11))

    split = data.clone().requires_grad_()
    counts = {"num_tokens": mask.sum(), "num_sequences": mask.any(dim=1).sum()}
    order = torch.randperm(5, generator=g)
    total = 0.0
    for rows in (order[:cut], order[cut:]):  # a rank or micro-batch, possibly with no row at all
        width = 7 + int(rows.numel())  # padded differently each time
        padded = torch.nn.functional.pad(spoiled(split[rows], mask[rows]), (0, width - 7), value=junk)
        padded_mask = torch.nn.functional.pad(mask[rows], (0, width - 7))
        part = aggregate(padded, padded_mask, aggregation=mode, norm_length=11, **counts)
        part.backward()
        total += part.item()
    assert total == pytest.approx(loss.item())
    torch.testing.assert_close(split.grad, whole.grad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)])
@pytest.mark.parametrize("counts", [{}, {"num_tokens": 0, "num_sequences": 0}])
def test_nothing_valid_gives_zero_with_a_graph(mode, shape, counts):
    x = torch.ones(shape, dtype=F64, requires_grad=True)
    loss = aggregate(x, torch.zeros(shape, dtype=torch.bool), aggregation=mode, **counts)
    loss.backward()
    assert loss.item() == 0.0 and torch.equal(x.grad, torch.zeros_like(x))


def test_dtype_is_kept():
    for mode in MODES:
        assert aggregate(X.float(), MASK, aggregation=mode, norm_length=3, num_tokens=4.0).dtype == torch.float32
        assert aggregate(X, MASK, aggregation=mode).dtype == F64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aggregation": "mean"}, "Unknown aggregation 'mean'. Use one of token-mean"),
        ({"norm_length": 0}, "norm_length must be > 0"),
        ({"loss_mask": MASK.double()}, "loss_mask must be a bool"),
        ({"per_token": X.half()}, "per_token must be float32 or float64"),
        ({"per_token": X[:2]}, "per_token must have the shape of loss_mask"),
    ],
)
def test_wrong_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        aggregate(**({"per_token": X, "loss_mask": MASK, "aggregation": "token-mean"} | change))
