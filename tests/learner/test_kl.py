"""KL estimators against the true divergence, and the adaptive coefficient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.learner.kl import AdaptiveKL, kl_estimate

F64 = torch.float64


def estimates(logprob: float, ref: float) -> list[float]:
    a, b = torch.tensor([logprob], dtype=F64), torch.tensor([ref], dtype=F64)
    return [kl_estimate(a, b, kind).item() for kind in ("k1", "k2", "k3")]


def test_estimates_of_one_token():
    assert estimates(-1.0, -1.5) == pytest.approx([0.5, 0.125, math.exp(-0.5) - 1 + 0.5])
    assert estimates(-1.5, -1.0) == pytest.approx([-0.5, 0.125, math.exp(0.5) - 1 - 0.5])
    assert estimates(-1.0, -1.0) == [0.0, 0.0, 0.0]


def test_k1_is_clamped_to_20_and_k3_to_10():
    assert estimates(0.0, -100.0) == pytest.approx([20.0, 200.0, 10.0])
    assert estimates(-100.0, 0.0) == pytest.approx([-20.0, 200.0, 10.0])
    assert estimates(-math.inf, 0.0) == pytest.approx([-20.0, 200.0, 10.0])


def test_k1_and_k3_average_to_the_true_divergence():
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=F64)
    true = (policy * (policy / reference).log()).sum().item()
    for kind in ("k1", "k3"):
        assert (policy * kl_estimate(policy.log(), reference.log(), kind)).sum().item() == pytest.approx(true)


@settings(deadline=None)
@given(a=st.floats(-30, 0), b=st.floats(-30, 0))
def test_any_pair_matches_the_definition(a, b):
    k1 = min(max(a - b, -20.0), 20.0)
    k3 = min(max(math.exp(-k1) - 1 + k1, 0.0), 10.0)
    assert estimates(a, b) == pytest.approx([k1, k1**2 / 2, k3], abs=1e-12)


def test_float32_k3_of_a_tiny_drift_keeps_its_digits_and_is_not_negative():
    drift = torch.tensor([1e-3, -1e-3, 1e-4, -1e-4, 1e-7])
    got = kl_estimate(drift, torch.zeros(5), "k3")
    assert got.dtype == torch.float32 and (got >= 0).all()
    torch.testing.assert_close(got[:2], torch.tensor([5e-7, 5e-7]), rtol=1e-3, atol=0)


def test_gradients_flow_to_both_arguments():
    a = torch.tensor([-1.0], dtype=F64, requires_grad=True)
    b = torch.tensor([-1.5], dtype=F64, requires_grad=True)
    kl_estimate(a, b, "k3").sum().backward()
    assert a.grad.item() == pytest.approx(1 - math.exp(-0.5)) and b.grad.item() == pytest.approx(math.exp(-0.5) - 1)


def test_wrong_input_is_named():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="Unknown KL kind 'k4'"):
        kl_estimate(x, x, "k4")
    with pytest.raises(ValueError, match="one shape"):
        kl_estimate(x, torch.zeros(2, 1), "k1")
    with pytest.raises(ValueError, match="both be float32 or both float64"):
        kl_estimate(x.bfloat16(), x.bfloat16(), "k1")
    with pytest.raises(ValueError, match="both be float32 or both float64"):
        kl_estimate(x, x.double(), "k1")


@pytest.mark.parametrize(
    ("kl", "n", "beta"),
    [
        (0.1, 64, 0.5),  # on target: unchanged
        (0.11, 64, 0.5 * (1 + 0.1 * 64 / 256)),
        (0.09, 64, 0.5 * (1 - 0.1 * 64 / 256)),
        (9.0, 64, 0.5 * (1 + 0.2 * 64 / 256)),  # error clipped at +.2
        (-9.0, 256, 0.5 * (1 - 0.2)),  # k1 may average below zero
    ],
)
def test_beta_after_one_update(kl, n, beta):
    controller = AdaptiveKL(0.5, target=0.1, horizon=256)
    assert controller.update(torch.tensor(kl, dtype=F64), n) == pytest.approx(beta)
    assert controller.beta == pytest.approx(beta)


def test_beta_brings_a_responsive_kl_to_its_target():
    controller = AdaptiveKL(0.01, target=0.1, horizon=100)
    for _ in range(200):
        controller.update(0.02 / controller.beta, 100)  # a policy whose KL falls as beta rises
    assert 0.02 / controller.beta == pytest.approx(0.1, rel=1e-3)


def test_beta_survives_a_checkpoint_and_the_new_config_keeps_its_target():
    first = AdaptiveKL(0.5, target=0.1, horizon=256)
    first.update(1.0, 64)
    second = AdaptiveKL(9.0, target=0.2, horizon=128)
    second.load_state_dict(first.state_dict())
    assert (second.beta, second.target, second.horizon) == (first.beta, 0.2, 128)


@settings(deadline=None)
@given(kls=st.lists(st.floats(-1e6, 1e6), max_size=30), n=st.floats(0.1, 499))
def test_beta_stays_positive(kls, n):
    controller = AdaptiveKL(0.5, target=0.1, horizon=100)
    for kl in kls:
        before = controller.beta
        assert controller.update(kl, n) > 0 or before < 1e-300
        assert (controller.beta - before) * (kl - 0.1) >= 0  # moves in the direction of the error


def test_wrong_controller_input_is_named():
    for kwargs in ({"beta": 0.0}, {"target": -1.0}, {"horizon": math.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be a finite number > 0"):
            AdaptiveKL(**({"beta": 0.5, "target": 0.1, "horizon": 100} | kwargs))
    controller = AdaptiveKL(0.5, target=0.1, horizon=100)
    with pytest.raises(ValueError, match="kl must be finite"):
        controller.update(math.nan, 1)
    for n in (0, 500):
        with pytest.raises(ValueError, match="n must lie in"):
            controller.update(0.1, n)
    for state in ({}, {"beta": -1.0}):
        with pytest.raises(ValueError, match="needs a finite 'beta'"):
            controller.load_state_dict(state)
    assert controller.beta == 0.5
