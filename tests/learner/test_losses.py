"""Policy and value loss: literals, a loop oracle, limits, splits, masks and metrics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envgym.learner.losses import policy_loss, value_loss

F64 = torch.float64
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token-mean"}


def one_token(ratio: float, advantage: float, **kwargs) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, gradient with respect to the log-probability, and metrics of a single token."""
    logprob = torch.tensor([[math.log(ratio) - 1.0]], dtype=F64, requires_grad=True)
    loss, metrics = policy_loss(
        logprob,
        torch.tensor([[-1.0]], dtype=F64),
        torch.tensor([[advantage]], dtype=F64),
        torch.tensor([[True]]),
        **(CLIP | kwargs),
    )
    loss.backward()
    return loss.item(), logprob.grad.item(), metrics


def random_batch(seed: int, batch: int = 4, length: int = 6) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randn(batch, length, generator=g, dtype=F64)

    return {
        "logprobs": draw() - 2,
        "proximal_logprobs": draw() - 2,
        "advantages": draw(),
        "loss_mask": torch.rand(batch, length, generator=g) < 0.7,
    }


def value_batch(seed: int) -> dict[str, Tensor]:
    b = random_batch(seed)
    return {
        "values": b["logprobs"],
        "old_values": b["proximal_logprobs"],
        "value_targets": b["advantages"],
        "loss_mask": b["loss_mask"],
    }


# Literals


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.0, -2.0, 2.0, 2.0),
        (1.25, 2.0, -2.5, -2.5),  # inside 1 + .28
        (1.5, 2.0, -1.28 * 2, 0.0),  # clipped above
        (0.5, 2.0, -1.0, -1.0),  # a good action made less likely is never clipped
        (0.5, -2.0, 0.8 * 2, 0.0),  # clipped below
        (1.5, -2.0, 3.0, 3.0),  # a bad action made more likely is never clipped
    ],
)
def test_ppo_clip_of_one_token(ratio, advantage, loss, gradient):
    got = one_token(ratio, advantage)
    assert got[:2] == (pytest.approx(loss), pytest.approx(gradient))


def test_dual_clip_caps_the_loss_of_a_bad_action_made_far_more_likely():
    assert one_token(5.0, -2.0)[:2] == (pytest.approx(10.0), pytest.approx(10.0))
    assert one_token(5.0, -2.0, dual_clip=3.0)[:2] == (pytest.approx(6.0), 0.0)
    assert one_token(2.0, -2.0, dual_clip=3.0)[:2] == (pytest.approx(4.0), pytest.approx(4.0))
    assert one_token(5.0, 2.0, dual_clip=3.0)[0] == pytest.approx(-2.56)


def test_log_ratio_is_clamped_before_exp():
    loss, gradient, metrics = one_token(math.exp(30.0), -1.0)
    assert loss == pytest.approx(math.exp(20.0)) and gradient == 0.0
    assert metrics["ratio_max"].item() == pytest.approx(math.exp(20.0))


def test_weights_scale_the_loss_but_not_the_denominator():
    logprobs = torch.zeros(1, 2, dtype=F64)
    advantages = torch.tensor([[1.0, 3.0]], dtype=F64)
    mask, weights = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[2.0, 0.0]], dtype=F64, requires_grad=True)
    loss, _ = policy_loss(logprobs.requires_grad_(), logprobs.detach(), advantages, mask, **CLIP, weights=weights)
    loss.backward()
    assert loss.item() == -(2.0 * 1.0 + 0.0 * 3.0) / 2
    assert logprobs.grad.tolist() == [[-1.0, 0.0]] and weights.grad is None
    value, _ = value_loss(
        advantages, advantages, torch.zeros_like(advantages), mask, aggregation="token-mean", weights=weights
    )
    assert value.item() == 0.5 * (2.0 * 1.0 + 0.0) / 2


def test_policy_metrics_are_sums_over_valid_tokens():
    ratios = torch.tensor([[1.5, 0.5, 4.0, 1.0, 1.5, 9.0]], dtype=F64)
    advantages = torch.tensor([[1.0, -1.0, -1.0, 1.0, 0.0, 1.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]], dtype=torch.bool)
    logs = ratios.log()
    _, metrics = policy_loss(logs, torch.zeros_like(logs), advantages, mask, **CLIP, dual_clip=3.0)
    got = {name: value.item() for name, value in metrics.items()}
    k1 = -math.log(1.5 * 0.5 * 4.0 * 1.5)
    assert got == pytest.approx(
        {
            "ratio_sum": 8.5,
            "ratio_max": 4.0,
            "clip_low_sum": 1,
            "clip_high_sum": 1,
            "dual_clip_sum": 1,
            "kl_proximal_k3_sum": 8.5 - 5 + k1,  # sum of ratio - 1 - log ratio
            "num_tokens": 5,
        }
    )


def test_the_proximal_kl_is_that_of_proximal_to_current():
    """Averaged over tokens sampled from the proximal policy it is KL(proximal || current)."""
    proximal, current = torch.tensor([0.5, 0.3, 0.2], dtype=F64), torch.tensor([0.4, 0.4, 0.2], dtype=F64)
    tokens = torch.tensor([[0] * 5 + [1] * 3 + [2] * 2])  # exactly the proximal frequencies
    mask = torch.ones_like(tokens, dtype=torch.bool)
    _, metrics = policy_loss(current.log()[tokens], proximal.log()[tokens], torch.zeros(1, 10, dtype=F64), mask, **CLIP)
    kl = (proximal * (proximal / current).log()).sum().item()
    assert metrics["kl_proximal_k3_sum"].item() / 10 == pytest.approx(kl)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (1.0, 0.0, 3.0, None, 2.0, -2.0),
        (1.0, 0.9, 3.0, 0.2, 2.0, -2.0),  # inside the clip range
        (1.0, 0.0, 3.0, 0.2, 0.5 * 2.8**2, 0.0),  # moved towards the target by more than the clip: no further push
        (1.0, 2.0, 3.0, 0.2, 2.0, -2.0),  # moved away from the target: the plain error is larger and pulls back
    ],
)
def test_value_loss_of_one_token(value, old, target, clip, loss, gradient):
    v = torch.tensor([[value]], dtype=F64, requires_grad=True)
    got, _ = value_loss(
        v,
        torch.tensor([[old]], dtype=F64),
        torch.tensor([[target]], dtype=F64),
        torch.tensor([[True]]),
        clip=clip,
        aggregation="token-mean",
    )
    got.backward()
    assert (got.item(), v.grad.item()) == (pytest.approx(loss), pytest.approx(gradient))


def test_value_metrics_are_sums_over_valid_tokens():
    values = torch.tensor([[1.0, 1.0, 1.0, 50.0]], dtype=F64)
    old = torch.tensor([[0.0, 2.0, 0.9, 0.0]], dtype=F64)
    targets = torch.tensor([[3.0, 3.0, 0.5, 0.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 1, 0]], dtype=torch.bool)
    _, metrics = value_loss(values, old, targets, mask, clip=0.2, aggregation="token-mean")
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(
        {"squared_error_sum": 4 + 4 + 0.25, "value_clip_sum": 1, "num_tokens": 3}
    )


# Oracle


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    clip_low=st.floats(0, 0.9),
    clip_high=st.floats(0, 2),
    dual_clip=st.none() | st.floats(1.01, 5),
)
def test_policy_loss_matches_the_loop(seed, clip_low, clip_high, dual_clip):
    b = random_batch(seed)
    total, count = 0.0, 0
    for lp, proximal, advantage, valid in zip(*(x.flatten().tolist() for x in b.values()), strict=True):
        if valid:
            ratio = math.exp(lp - proximal)
            loss = -min(ratio * advantage, min(max(ratio, 1 - clip_low), 1 + clip_high) * advantage)
            if dual_clip is not None and advantage < 0:
                loss = min(loss, -dual_clip * advantage)
            total, count = total + loss, count + 1
    got, _ = policy_loss(**b, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, aggregation="token-mean")
    assert got.item() == pytest.approx(total / max(count, 1))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), clip=st.none() | st.floats(0.01, 2))
def test_value_loss_matches_the_loop(seed, clip):
    b = value_batch(seed)
    total, count = 0.0, 0
    for value, old, target, valid in zip(*(x.flatten().tolist() for x in b.values()), strict=True):
        if valid:
            clipped = value if clip is None else old + min(max(value - old, -clip), clip)
            total, count = total + 0.5 * max((value - target) ** 2, (clipped - target) ** 2), count + 1
    assert value_loss(**b, clip=clip, aggregation="token-mean")[0].item() == pytest.approx(total / max(count, 1))


# Limits


def test_on_policy_the_gradient_is_the_plain_policy_gradient_whatever_the_clip():
    b = random_batch(1)
    for clip_low, clip_high in [(0.2, 0.28), (0.0, 0.0)]:
        logprobs = b["proximal_logprobs"].clone().requires_grad_()
        loss, metrics = policy_loss(
            **(b | {"logprobs": logprobs}), clip_low=clip_low, clip_high=clip_high, aggregation="seq-mean-token-sum"
        )
        loss.backward()
        rows = b["loss_mask"].any(dim=1).sum()
        torch.testing.assert_close(logprobs.grad, torch.where(b["loss_mask"], -b["advantages"], 0.0) / rows)
        assert metrics["kl_proximal_k3_sum"] == metrics["clip_low_sum"] == metrics["clip_high_sum"] == 0
        assert metrics["ratio_sum"] == metrics["num_tokens"]


def test_an_infinite_clip_is_no_clip():
    b = random_batch(2)
    got, metrics = policy_loss(**b, clip_low=1.0, clip_high=math.inf, aggregation="token-mean")
    ratio = (b["logprobs"] - b["proximal_logprobs"]).exp()
    assert got.item() == pytest.approx(-(ratio * b["advantages"])[b["loss_mask"]].mean().item())
    assert metrics["clip_low_sum"] == metrics["clip_high_sum"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_nothing_valid_gives_zero_loss_zero_gradient_and_zero_metrics(mode):
    none = torch.zeros(2, 3, dtype=torch.bool)
    bad = torch.full((2, 3), math.nan)
    leaf = bad.clone().requires_grad_()
    for loss, metrics in (
        policy_loss(leaf, bad, bad, none, clip_low=0.2, clip_high=0.2, dual_clip=3.0, aggregation=mode, weights=bad),
        value_loss(leaf, bad, bad, none, clip=0.2, aggregation=mode, weights=bad),
    ):
        leaf.grad = None
        loss.backward()
        assert loss.item() == 0.0 and torch.equal(leaf.grad, torch.zeros(2, 3))
        assert all(value.item() == 0.0 for value in metrics.values())


# Metamorphic


def losses_and_gradients(policy: dict[str, Tensor], critic: dict[str, Tensor], mode: str) -> list[Tensor]:
    logprobs, values = policy["logprobs"].clone().requires_grad_(), critic["values"].clone().requires_grad_()
    policy_total, _ = policy_loss(
        **(policy | {"logprobs": logprobs}), clip_low=0.2, clip_high=0.28, dual_clip=3.0, aggregation=mode
    )
    value_total, _ = value_loss(**(critic | {"values": values}), clip=0.3, aggregation=mode)
    (policy_total + value_total).backward()
    return [policy_total.detach(), value_total.detach(), logprobs.grad, values.grad]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_junk_padding_and_row_order_reach_neither_loss_nor_gradient(mode, junk):
    batches = random_batch(3), value_batch(3)
    mask, order = batches[0]["loss_mask"], [3, 1, 0, 2]
    assert not mask.all()
    clean = losses_and_gradients(*batches, mode)
    spoil = [{k: x if k == "loss_mask" else torch.where(mask, x, junk) for k, x in b.items()} for b in batches]
    for got, expected in zip(losses_and_gradients(*spoil, mode), clean, strict=True):
        assert torch.equal(got, expected)
    pad = [{k: torch.nn.functional.pad(x, (1, 4)) for k, x in b.items()} for b in batches]
    got = losses_and_gradients(*pad, mode)
    torch.testing.assert_close(got[:2] + [gradient[:, 1:-4] for gradient in got[2:]], clean)
    got = losses_and_gradients(*({k: x[order] for k, x in b.items()} for b in batches), mode)
    torch.testing.assert_close(got, clean[:2] + [gradient[order] for gradient in clean[2:]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", [[4], [1, 3], [2, 2], [1, 1, 1, 1], [0, 4]])
def test_micro_batches_add_up_to_the_whole_batch(mode, split):
    b, critic = random_batch(5), value_batch(5)
    mask = b["loss_mask"]
    counts = {"num_tokens": mask.sum(), "num_sequences": mask.any(dim=1).sum(), "norm_length": 6}
    results = []
    for sizes in ([4], split):
        leaf, value_leaf = b["logprobs"].clone().requires_grad_(), critic["values"].clone().requires_grad_()
        sums: dict[str, float] = {}
        parts = zip(*(x.split(sizes) for x in (b | {"logprobs": leaf}).values()), strict=True)
        for part in parts:
            loss, metrics = policy_loss(*part, clip_low=0.2, clip_high=0.28, aggregation=mode, **counts)
            loss.backward()
            for name, value in (metrics | {"loss_sum": loss}).items():
                join = max if name.endswith("_max") else float.__add__
                sums[name] = join(sums.get(name, 0.0), value.item())
        for part in zip(*(x.split(sizes) for x in (critic | {"values": value_leaf}).values()), strict=True):
            value_loss(*part, clip=0.3, aggregation=mode, **counts)[0].backward()
        results.append((sums, leaf.grad, value_leaf.grad))
    assert results[1][0] == pytest.approx(results[0][0])
    torch.testing.assert_close(results[1][1:], results[0][1:])
    assert results[0][1].any() and results[0][2].any()


def test_only_the_current_policy_and_the_current_values_receive_a_gradient():
    policy = {k: x.requires_grad_() if x.is_floating_point() else x for k, x in random_batch(6).items()}
    policy_loss(**policy, **CLIP)[0].backward()
    assert policy["logprobs"].grad.any()
    assert policy["proximal_logprobs"].grad is None and policy["advantages"].grad is None
    critic = {k: x.detach().requires_grad_() if x.is_floating_point() else x for k, x in value_batch(6).items()}
    value_loss(**critic, clip=0.2, aggregation="token-mean")[0].backward()
    assert critic["values"].grad.any()
    assert critic["old_values"].grad is None and critic["value_targets"].grad is None


def test_float32_follows_float64():
    policy, critic = random_batch(7), value_batch(7)
    single = [{k: x.float() if x.is_floating_point() else x for k, x in b.items()} for b in (policy, critic)]
    for got, expected in zip(
        losses_and_gradients(*single, "token-mean"), losses_and_gradients(policy, critic, "token-mean"), strict=True
    ):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


# Errors


@pytest.mark.parametrize(
    ("loss", "change", "message"),
    [
        (policy_loss, {"clip_low": -0.1}, "clip_low and clip_high must be >= 0"),
        (policy_loss, {"dual_clip": 1.0}, "dual_clip must be > 1"),
        (policy_loss, {"aggregation": "sum"}, "Unknown aggregation 'sum'"),
        (policy_loss, {"loss_mask": torch.ones(4, 6)}, "loss_mask must be a bool"),
        (policy_loss, {"logprobs": torch.zeros(4, 6).bfloat16()}, "logprobs must be float32 or float64"),
        (policy_loss, {"weights": torch.ones(4, 1)}, "weights must have the shape"),
        (value_loss, {"clip": 0.0}, "clip must be > 0"),
        (value_loss, {"old_values": torch.zeros(4, 5)}, "old_values must have the shape"),
    ],
)
def test_wrong_input_is_named(loss, change, message):
    right = random_batch(8) | CLIP if loss is policy_loss else value_batch(8) | {"aggregation": "token-mean"}
    with pytest.raises(ValueError, match=message):
        loss(**(right | change))
