"""Importance weights between the serving engine and the trainer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.learner.importance import effective_sample_size, icepop_weights, mismatch_metrics, tis_weights

F64 = torch.float64
LEVELS = ["token", "sequence", "geometric"]
# Ratios per valid token. Row 0: 3, 3/4 (product 9/4). Row 1: 8, 1/4, 1/8 (product 1/4). Row 2: nothing valid.
RATIOS = torch.tensor([[3.0, 0.75, 1.0], [8.0, 0.25, 0.125], [1.0, 1.0, 1.0]], dtype=F64)
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
BEHAVIOR = torch.full((3, 3), -1.0, dtype=F64)
PROXIMAL = BEHAVIOR + RATIOS.log()


def close(actual: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=F64))


def test_truncated_importance_weights_at_each_level():
    close(tis_weights(PROXIMAL, BEHAVIOR, MASK), [[2, 0.75, 0], [2, 0.25, 0.125], [0, 0, 0]])
    close(tis_weights(PROXIMAL, BEHAVIOR, MASK, level="sequence"), [[2, 2, 0], [0.25] * 3, [0, 0, 0]])
    close(tis_weights(PROXIMAL, BEHAVIOR, MASK, level="sequence", cap=4.0), [[2.25, 2.25, 0], [0.25] * 3, [0, 0, 0]])
    mean = [1.5, 0.25 ** (1 / 3)]
    close(tis_weights(PROXIMAL, BEHAVIOR, MASK, level="geometric"), [[mean[0]] * 2 + [0], [mean[1]] * 3, [0, 0, 0]])


def test_icepop_weights_at_each_level():
    close(icepop_weights(PROXIMAL, BEHAVIOR, MASK), [[3, 0.75, 0], [0, 0, 0], [0, 0, 0]])
    close(icepop_weights(PROXIMAL, BEHAVIOR, MASK, low=0.2, high=9.0), [[3, 0.75, 0], [8, 0.25, 0], [0, 0, 0]])
    close(icepop_weights(PROXIMAL, BEHAVIOR, MASK, level="sequence"), [[2.25, 2.25, 0], [0] * 3, [0, 0, 0]])
    mean = [1.5, 0.25 ** (1 / 3)]
    close(icepop_weights(PROXIMAL, BEHAVIOR, MASK, level="geometric"), [[mean[0]] * 2 + [0], [mean[1]] * 3, [0, 0, 0]])


def test_both_icepop_bounds_are_inclusive():
    zero = torch.zeros(1, 1, dtype=F64)
    valid = torch.ones(1, 1, dtype=torch.bool)
    assert icepop_weights(zero, zero, valid, low=1.0, high=1.0).item() == 1.0


def test_mismatch_metrics_are_sums_and_maxima_over_valid_tokens():
    got = {name: value.item() for name, value in mismatch_metrics(PROXIMAL, BEHAVIOR, MASK).items()}
    ratios = [3, 0.75, 8, 0.25, 0.125]
    assert got == pytest.approx(
        {
            "abs_diff_sum": sum(abs(math.log(r)) for r in ratios),
            "abs_diff_max": math.log(8),
            "ratio_sum": sum(ratios),
            "ratio_squared_sum": sum(r * r for r in ratios),
            "ratio_max": 8.0,
            "num_tokens": 5,
        }
    )
    expected = sum(ratios) ** 2 / sum(r * r for r in ratios)
    assert effective_sample_size(mismatch_metrics(PROXIMAL, BEHAVIOR, MASK)).item() == pytest.approx(expected)


def test_a_ratio_beyond_exp_20_is_clamped_and_its_difference_is_not():
    zero, far = torch.zeros(1, 1, dtype=F64), torch.full((1, 1), -50.0, dtype=F64)
    valid = torch.ones(1, 1, dtype=torch.bool)
    got = mismatch_metrics(zero, far, valid)
    assert got["abs_diff_sum"].item() == 50.0 and got["ratio_max"].item() == pytest.approx(math.exp(20))
    assert tis_weights(zero, far, valid, cap=1e12).item() == pytest.approx(math.exp(20))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), level=st.sampled_from(LEVELS), cap=st.floats(0.5, 3), low=st.floats(0, 1))
def test_any_batch_matches_the_loop(seed, level, cap, low):
    g = torch.Generator().manual_seed(seed)
    proximal, behavior = torch.randn(3, 5, generator=g, dtype=F64), torch.randn(3, 5, generator=g, dtype=F64)
    mask = torch.rand(3, 5, generator=g) < 0.6
    tis, icepop = torch.zeros(3, 5, dtype=F64), torch.zeros(3, 5, dtype=F64)
    for b in range(3):
        columns = mask[b].nonzero().flatten().tolist()
        differences = {t: float(proximal[b, t] - behavior[b, t]) for t in columns}
        for t in columns:
            total = sum(differences.values())
            log = {"token": differences[t], "sequence": total, "geometric": total / len(columns)}[level]
            tis[b, t] = min(math.exp(log), cap)
            icepop[b, t] = math.exp(log) if low <= math.exp(log) <= 1 + cap else 0.0
    torch.testing.assert_close(tis_weights(proximal, behavior, mask, cap=cap, level=level), tis)
    torch.testing.assert_close(icepop_weights(proximal, behavior, mask, low=low, high=1 + cap, level=level), icepop)


def test_equal_engines_have_weight_one_and_a_full_effective_sample_size():
    for level in LEVELS:
        for weigh in (tis_weights, icepop_weights):
            assert torch.equal(weigh(BEHAVIOR, BEHAVIOR, MASK, level=level), MASK.double())
    assert effective_sample_size(mismatch_metrics(BEHAVIOR, BEHAVIOR, MASK)).item() == 5.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_junk_padding_and_row_order_change_nothing(level, junk):
    pad = torch.nn.functional.pad
    for weigh in (tis_weights, icepop_weights):
        clean = weigh(PROXIMAL, BEHAVIOR, MASK, level=level)
        dirty = [torch.where(MASK, x, junk) for x in (PROXIMAL, BEHAVIOR)]
        assert torch.equal(weigh(*dirty, MASK, level=level), clean)
        wide = [pad(x, (1, 2), value=junk) for x in (PROXIMAL, BEHAVIOR)]
        torch.testing.assert_close(weigh(*wide, pad(MASK, (1, 2)), level=level)[:, 1:-2], clean)
        assert torch.equal(weigh(PROXIMAL.flip(0), BEHAVIOR.flip(0), MASK.flip(0), level=level), clean.flip(0))
        assert mismatch_metrics(*dirty, MASK) == mismatch_metrics(PROXIMAL, BEHAVIOR, MASK)


def test_metrics_of_the_parts_add_up_to_those_of_the_whole():
    whole = mismatch_metrics(PROXIMAL, BEHAVIOR, MASK)
    parts = [mismatch_metrics(PROXIMAL[i : i + 1], BEHAVIOR[i : i + 1], MASK[i : i + 1]) for i in range(3)]
    for name, value in whole.items():
        joined = [part[name].item() for part in parts]
        assert (max if name.endswith("_max") else sum)(joined) == pytest.approx(value.item())


def test_no_valid_token_gives_zeros_everywhere():
    nothing = torch.zeros_like(MASK)
    assert not tis_weights(PROXIMAL, BEHAVIOR, nothing, level="geometric").any()
    metrics = mismatch_metrics(PROXIMAL, BEHAVIOR, nothing)
    assert all(value.item() == 0.0 for value in metrics.values())
    assert effective_sample_size(metrics).item() == 0.0


def test_weights_are_constants_of_the_input_dtype():
    proximal = PROXIMAL.float().requires_grad_()
    for weigh in (tis_weights, icepop_weights):
        got = weigh(proximal, BEHAVIOR.float(), MASK)
        assert got.dtype == torch.float32 and not got.requires_grad


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="cap must be > 0"):
        tis_weights(PROXIMAL, BEHAVIOR, MASK, cap=0.0)
    with pytest.raises(ValueError, match="0 <= low <= high"):
        icepop_weights(PROXIMAL, BEHAVIOR, MASK, low=2.0, high=1.0)
    with pytest.raises(ValueError, match="Unknown level 'turn'"):
        tis_weights(PROXIMAL, BEHAVIOR, MASK, level="turn")
    with pytest.raises(ValueError, match="behavior_logprobs must have the shape"):
        icepop_weights(PROXIMAL, BEHAVIOR[:2], MASK)
    with pytest.raises(ValueError, match="mask must be a bool"):
        mismatch_metrics(PROXIMAL, BEHAVIOR, MASK.double())
