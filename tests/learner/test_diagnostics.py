"""Explained variance: overall, per group, and from sums added over ranks."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.diagnostics import explained_variance, explained_variance_from_stats, explained_variance_stats

F64 = torch.float64


def explained_variance_by_group(targets, values, mask, group_ids, *, num_groups):
    stats = explained_variance_stats(targets, values, mask, group_ids=group_ids, num_groups=num_groups)
    return explained_variance_from_stats(stats)


G = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=F64)  # variance 1.25
ALL = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1.0),
        ([8.0, 9.0, 10.0, 11.0], 1.0),  # exact up to a constant
        ([7.0, 7.0, 7.0, 7.0], 0.0),
        ([2.0, 2.0, 3.0, 3.0], 1 - 0.5 / 1.25),  # errors -1, 0, 0, 1
        ([4.0, 3.0, 2.0, 1.0], 1 - 5.0 / 1.25),  # errors -3, -1, 1, 3
    ],
)
def test_explained_variance_of_four_tokens(values, expected):
    got = explained_variance(G, torch.tensor([values], dtype=F64), ALL)
    assert got.dtype == F64 and got.item() == pytest.approx(expected)


@pytest.mark.parametrize("target", [0.0, 0.1, -1e9 - 0.1, 1e15])
@pytest.mark.parametrize("valid", [0, 1, 3, 4])
@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0, 0.0], [5.0, -1.0, 0.1, 3.0]])
def test_targets_without_spread_give_zero_never_nan(target, valid, values):
    mask = torch.arange(4)[None] < valid
    targets, values = torch.full((1, 4), target, dtype=F64), torch.tensor([values], dtype=F64)
    assert explained_variance(targets, values, mask).item() == 0.0
    assert explained_variance_from_stats(explained_variance_stats(targets, values, mask)).tolist() == [0.0]


@pytest.mark.parametrize(("target", "valid"), [(0.3, 3), (1.7, 11), (12.3, 7)])
def test_rounding_in_the_sums_of_equal_targets_is_not_mistaken_for_spread(target, valid):
    targets, mask = torch.full((1, valid), target, dtype=F64), torch.ones(1, valid, dtype=torch.bool)
    values = torch.linspace(0, 1, valid, dtype=F64)[None]
    stats = explained_variance_stats(targets, values, mask)
    assert (stats[:, 2] / valid - (stats[:, 1] / valid) ** 2).item() > 0  # the case is a real one
    assert explained_variance_from_stats(stats).tolist() == [0.0]


def test_a_large_common_offset_costs_no_digits():
    values = torch.tensor([[2.0, 2.0, 3.0, 3.0]], dtype=F64)
    for target_offset, value_offset in [(1e9, 1e9), (1e9, 0.0), (0.0, 1e9)]:
        got = explained_variance(G + target_offset, values + value_offset, ALL)
        assert got.item() == pytest.approx(0.6, abs=1e-6)


def slow(targets: list[float], values: list[float]) -> float:
    if len(targets) < 2 or statistics.pvariance(targets) == 0:
        return 0.0
    errors = [g - v for g, v in zip(targets, values, strict=True)]
    return 1 - statistics.pvariance(errors) / statistics.pvariance(targets)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 4), density=st.floats(0, 1))
def test_overall_and_grouped_match_the_loop_and_sums_add_over_ranks(seed, cut, density):
    g = torch.Generator().manual_seed(seed)
    targets, values = torch.randn(4, 6, generator=g, dtype=F64), torch.randn(4, 6, generator=g, dtype=F64)
    mask = torch.rand(4, 6, generator=g) < density
    groups = torch.randint(0, 3, (4, 6), generator=g)

    expected = slow(targets[mask].tolist(), values[mask].tolist())
    assert explained_variance(targets, values, mask).item() == pytest.approx(expected, abs=1e-9)
    per_group = [slow(targets[mask & (groups == k)].tolist(), values[mask & (groups == k)].tolist()) for k in range(4)]
    got = explained_variance_by_group(targets, values, mask, groups, num_groups=4)
    assert got.tolist() == pytest.approx(per_group, rel=1e-9, abs=1e-9)

    ranks = [
        explained_variance_stats(targets[rows], values[rows], mask[rows], group_ids=groups[rows], num_groups=4)
        for rows in (slice(0, cut), slice(cut, 4))
    ]
    summed = ranks[0] + ranks[1]
    assert explained_variance_from_stats(summed).tolist() == pytest.approx(per_group, rel=1e-9, abs=1e-9)
    assert explained_variance_from_stats(summed.sum(dim=0)).item() == pytest.approx(expected, abs=1e-9)
    assert summed[:, 0].tolist() == [int((mask & (groups == k)).sum()) for k in range(4)]


@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_junk_padding_and_row_order_change_nothing(junk):
    g = torch.Generator().manual_seed(1)
    targets, values = torch.randn(3, 5, generator=g, dtype=F64), torch.randn(3, 5, generator=g, dtype=F64)
    mask = torch.rand(3, 5, generator=g) < 0.6
    groups = torch.randint(0, 2, (3, 5), generator=g)
    clean = explained_variance(targets, values, mask)
    by_group = explained_variance_by_group(targets, values, mask, groups, num_groups=2)
    dirty = [torch.where(mask, x, junk) for x in (targets, values)]
    assert torch.equal(explained_variance(*dirty, mask), clean)
    junk_groups = torch.where(mask, groups, -99)
    assert torch.equal(explained_variance_by_group(*dirty, mask, junk_groups, num_groups=2), by_group)
    pad = torch.nn.functional.pad
    wide = [pad(x, (2, 1), value=junk) for x in (targets, values)]
    assert torch.equal(explained_variance(*wide, pad(mask, (2, 1))), clean)
    torch.testing.assert_close(explained_variance(targets.flip(0), values.flip(0), mask.flip(0)), clean)


def test_float32_is_computed_in_float64():
    targets, values = (G + 1e4).float(), torch.tensor([[2.0, 2.0, 3.0, 3.0]]) + 1e4
    got = explained_variance(targets, values, ALL)
    assert got.dtype == torch.float32 and got.item() == pytest.approx(0.6, abs=1e-6)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="values must have the shape of mask"):
        explained_variance(G, G[:, :3], ALL)
    with pytest.raises(ValueError, match="mask must be a bool"):
        explained_variance(G, G, ALL.double())
    with pytest.raises(ValueError, match=r"group_ids must lie in \[0, 2\).*got 0 to 3"):
        explained_variance_by_group(G, G, ALL, torch.tensor([[0, 1, 2, 3]]), num_groups=2)
    with pytest.raises(ValueError, match="group_ids must be integers"):
        explained_variance_by_group(G, G, ALL, G, num_groups=2)
    with pytest.raises(ValueError, match=r"stats must be float64 \[..., 5\]"):
        explained_variance_from_stats(torch.zeros(3, 4, dtype=F64))
