"""Whitening on one process and over gloo ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.whitening import whiten

F64 = torch.float64


SPREAD = math.sqrt(1.5)  # of three tokens one apart: mean 2, variance 2/3, which is over n


@pytest.mark.parametrize(
    ("x", "mask", "eps", "expected"),
    [
        ([3.0, 100.0, 5.0], [True, False, True], 1e-8, [-1.0, 0.0, 1.0]),
        ([1.0, 2.0, 3.0], [True] * 3, 1e-8, [-SPREAD, 0.0, SPREAD]),
        # The one-pass form would find a negative or wildly wrong variance here.
        ([1e8, 1e8 + 1.0, 1e8 + 2.0], [True] * 3, 1e-8, [-SPREAD, 0.0, SPREAD]),
        ([-1.0, 1.0], [True] * 2, 1.0, [-0.5, 0.5]),  # eps is added to the standard deviation
    ],
)
def test_whitened_tokens_written_out(x, mask, eps, expected):
    got = whiten(torch.tensor([x], dtype=F64), torch.tensor([mask]), eps=eps)
    torch.testing.assert_close(got, torch.tensor([expected], dtype=F64))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7, 1e6 + 0.1, 1e12])
@pytest.mark.parametrize("valid", [0, 1, 2, 7])
def test_no_token_one_token_or_no_spread_gives_exact_zeros(value, valid, dtype):
    x = torch.full((1, 7), value, dtype=dtype)
    got = whiten(x, torch.arange(7)[None] < valid)
    assert got.dtype == dtype and torch.equal(got, torch.zeros_like(x))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), junk=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_result_has_mean_zero_and_spread_one_and_ignores_masked_values_padding_and_order(seed, junk):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 8, generator=g, dtype=F64) * 10 + 5
    mask = torch.rand(3, 8, generator=g) < 0.7
    mask[0, :2] = True
    got = whiten(x, mask)
    assert got[mask].mean().item() == pytest.approx(0.0, abs=1e-9)
    assert got[mask].var(unbiased=False).item() == pytest.approx(1.0, rel=1e-6)
    assert not got[~mask].any()
    assert torch.equal(whiten(torch.where(mask, x, junk), mask), got)
    pad = torch.nn.functional.pad
    torch.testing.assert_close(whiten(pad(x, (1, 2), value=junk), pad(mask, (1, 2)))[:, 1:-2], got)
    torch.testing.assert_close(whiten(x.flip(0), mask.flip(0)), got.flip(0))
    torch.testing.assert_close(whiten(3 * x - 2, mask), got)


def test_no_gradient_flows_and_the_input_is_left_alone():
    x = torch.randn(2, 3, requires_grad=True)
    before = x.detach().clone()
    assert not whiten(x, torch.ones(2, 3, dtype=torch.bool)).requires_grad
    assert torch.equal(x.detach(), before)


def test_a_nan_on_a_valid_token_is_not_hidden():
    assert whiten(torch.tensor([[1.0, math.nan]]), torch.ones(1, 2, dtype=torch.bool)).isnan().all()


@pytest.mark.parametrize(
    ("x", "mask", "eps", "message"),
    [
        (torch.zeros(2, 3).bfloat16(), torch.ones(2, 3).bool(), 1e-8, "x must be float32 or float64"),
        (torch.zeros(2, 3), torch.ones(2, 3), 1e-8, "mask must be bool"),
        (torch.zeros(2, 3), torch.ones(2, 4).bool(), 1e-8, "mask must be bool"),
        (torch.zeros(2, 3), torch.ones(2, 3).bool(), -1.0, "eps must be >= 0"),
    ],
)
def test_wrong_input_is_named(x, mask, eps, message):
    with pytest.raises(ValueError, match=message):
        whiten(x, mask, eps=eps)


def batch_of_two_ranks() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=g, dtype=F64) + 3
    mask = torch.rand(4, 6, generator=g) < 0.5
    one_empty = mask.clone()
    one_empty[2:] = False
    return x, mask, one_empty


def whiten_on_a_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        alone = [dist.new_group([r]) for r in range(2)]
        x, mask, one_empty = batch_of_two_ranks()
        share = slice(2 * rank, 2 * rank + 2)
        results = {
            "default": whiten(x[share], mask[share]),
            "explicit": whiten(x[share], mask[share], group=dist.group.WORLD),
            "one_empty": whiten(x[share], one_empty[share]),
            "all_empty": whiten(x[share], torch.zeros_like(mask[share])),
            "alone": whiten(x[share], mask[share], group=alone[rank]),
        }
        torch.save(results, f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one_process_also_when_one_has_no_valid_token(tmp_path: Path):
    x, mask, one_empty = batch_of_two_ranks()
    mp.spawn(whiten_on_a_rank, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    both = {name: torch.cat([ranks[0][name], ranks[1][name]]) for name in ranks[0]}
    torch.testing.assert_close(both["default"], whiten(x, mask), rtol=1e-12, atol=1e-12)
    assert torch.equal(both["explicit"], both["default"])
    torch.testing.assert_close(both["one_empty"], whiten(x, one_empty), rtol=1e-12, atol=1e-12)
    assert both["one_empty"][:2].any() and not both["one_empty"][2:].any()
    assert not both["all_empty"].any()
    per_rank = torch.cat([whiten(x[:2], mask[:2]), whiten(x[2:], mask[2:])])
    torch.testing.assert_close(both["alone"], per_rank, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(both["alone"], both["default"])
