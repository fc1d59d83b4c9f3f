"""Estimates of a KL divergence from sampled tokens, and the controller that holds one at a target."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

KLKind = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind) -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens that the policy sampled.

        k1 = logp - logp_ref            clamped to +-20; unbiased, may be negative
        k2 = k1^2 / 2                   biased, small variance
        k3 = exp(-k1) - 1 + k1          clamped to [0, 10]; unbiased before the clamp, never negative

    The first argument is the policy that *sampled* the tokens. Two divergences must not be confused: drift from the
    reference is `kl_estimate(logprobs, ref_logprobs)`; the trust region is KL(proximal || current), so
    `kl_estimate(proximal_logprobs, logprobs)`. Source: Schulman, "Approximating KL Divergence", 2020.

    Args:
        logprobs: float32 or float64, any shape, nats. Gradients flow through both arguments.
        ref_logprobs: same shape and dtype.
        kind: "k1", "k2" or "k3".

    Returns:
        Same shape and dtype. There is no mask: select the action tokens with `torch.where`, before and after.

    Raises:
        ValueError: unknown `kind`, shapes or dtypes that differ.
    """
    if logprobs.dtype not in (torch.float32, torch.float64) or ref_logprobs.dtype != logprobs.dtype:
        raise ValueError(
            "logprobs and ref_logprobs must both be float32 or both float64, got "
            f"{logprobs.dtype} and {ref_logprobs.dtype}. Cast them with .float()."
        )
    if logprobs.shape != ref_logprobs.shape:
        raise ValueError(
            f"logprobs and ref_logprobs must have one shape, got {list(logprobs.shape)} and {list(ref_logprobs.shape)}."
        )
    if kind not in get_args(KLKind):
        raise ValueError(f"Unknown KL kind {kind!r}. Use one of {', '.join(get_args(KLKind))}.")
    k1 = (logprobs - ref_logprobs).clamp(-20.0, 20.0)
    if kind == "k1":
        return k1
    if kind == "k2":
        return k1.square() / 2
    return (torch.expm1(-k1) + k1).clamp(0.0, 10.0)


class AdaptiveKL:
    """A KL coefficient that rises while the measured KL is above its target and falls while it is below.

        beta <- beta * (1 + clip(KL / target - 1, -0.2, 0.2) * n / horizon)

    Source: Ziegler et al., 1909.08593, section 2.2. With n = horizon every update moves beta by at most 20 percent.

    Args:
        beta: the coefficient to start from, > 0.
        target: the KL to hold, nats, > 0, in the unit of the `kl` given to `update`.
        horizon: > 0, in the unit of the `n` given to `update` (trajectories, or updates).

    Raises:
        ValueError: an argument that is not > 0.
    """

    def __init__(self, beta: float, target: float, horizon: float) -> None:
        for name, value in (("beta", beta), ("target", target), ("horizon", horizon)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number > 0, got {value}.")
        self.beta = float(beta)
        self.target = float(target)
        self.horizon = float(horizon)

    def update(self, kl: float | Tensor, n: float) -> float:
        """Moves beta after `n` more trajectories with mean KL `kl` (the same on every rank); returns the new beta.

        Raises:
            ValueError: `kl` is not finite, or n is not in (0, 5 * horizon), where beta could turn negative.
        """
        kl = float(kl)
        if not math.isfinite(kl):
            raise ValueError(f"kl must be finite, got {kl}. A KL that overflowed says that the policy has diverged.")
        if not 0 < n < 5 * self.horizon:
            raise ValueError(f"n must lie in (0, 5 * horizon) = (0, {5 * self.horizon}), got {n}. Raise horizon.")
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.beta *= 1.0 + error * n / self.horizon
        return self.beta

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint must hold: beta. Target and horizon belong to the config."""
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores beta from `state_dict()`.

        Raises:
            ValueError: `state` has no finite "beta" > 0.
        """
        beta = float(state.get("beta", math.nan))
        if not (beta > 0 and math.isfinite(beta)):
            raise ValueError(f"The state of AdaptiveKL needs a finite 'beta' > 0, got {state}.")
        self.beta = beta
