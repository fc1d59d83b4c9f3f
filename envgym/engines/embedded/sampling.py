"""Draws one token per row: temperature, greedy, top-k and top-p with parameters of its own for each row."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F


class RowSampling:
    """The sampling parameters of a batch of rows, as tensors.

    Args:
        temperature: float [N]; 0 is greedy, and top-k and top-p then do not apply.
        top_k: int [N]; 0 keeps all.
        top_p: float [N] in (0, 1]; 1 keeps all.
        device: Where the logits live.
    """

    def __init__(
        self, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, *, device: torch.device | str = "cpu"
    ) -> None:
        greedy = temperature == 0
        cuts = ~greedy & ((top_k > 0) | (top_p < 1))
        inverse = 1.0 / np.where(greedy, 1.0, temperature)
        self.inverse_temperature = None if (inverse == 1).all() else _column(inverse, torch.float32, device)
        """float32 [N, 1], or None when every row has temperature 1."""
        self.greedy = _column(greedy, torch.bool, device).squeeze(1) if greedy.any() else None
        """bool [N], or None when no row is greedy."""
        self.has_support = cuts
        """bool [N] (numpy): rows whose support is recorded."""
        self.top_k: torch.Tensor | None = None
        self.top_p: torch.Tensor | None = None
        if cuts.any():
            unlimited = np.iinfo(np.int64).max
            self.top_k = _column(np.where(cuts & (top_k > 0), top_k, unlimited), torch.int64, device)
            # Rounding may bring the cumulative probability to 1 early: rows that keep all get a bound above it.
            self.top_p = _column(np.where(cuts & (top_p < 1), top_p, 2.0), torch.float32, device)


def sample(
    logits: torch.Tensor, uniforms: torch.Tensor, rows: RowSampling
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Draws a token for each row by inverting its cumulative distribution at the row's uniform number.

    The distribution is softmax(logits / temperature), cut to the top-k tokens, those renormalised and cut to the
    smallest set of most probable tokens whose probability reaches top_p, and renormalised again. Equal logits rank by
    id, lowest first. The drawn token is the first id whose cumulative probability, in the order of ids, exceeds the
    uniform number; it always has positive probability. What one row draws does not depend on the other rows.

    Args:
        logits: [N, V], float32 or lower precision.
        uniforms: float32 [N] in [0, 1).
        rows: Parameters of the N rows.

    Returns:
        Token ids int64 [N]; their log-probabilities float32 [N] under the distribution drawn from (greedy rows: under
        softmax(logits)), NaN where the logits are not finite; and the kept tokens bool [N, V], or None when no row
        cuts.
    """
    scaled = logits.float()
    if rows.inverse_temperature is not None:
        scaled = scaled * rows.inverse_temperature
    kept = None
    if rows.top_k is not None and rows.top_p is not None:
        kept = _kept(scaled, rows.top_k, rows.top_p)
        scaled = scaled.masked_fill(~kept, -math.inf)
    shifted = scaled - scaled.amax(-1, keepdim=True)
    cumulative = shifted.exp().cumsum(-1)  # CPU and CUDA accumulate float32 sums in higher precision or by trees
    total = cumulative[:, -1:]
    # The bound keeps u * total below the total, so that some token's cumulative probability always exceeds it.
    targets = torch.minimum(uniforms.unsqueeze(1) * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, targets, right=True)
    if rows.greedy is not None:
        ids = torch.where(rows.greedy.unsqueeze(1), scaled.argmax(-1, keepdim=True), ids)
    ids.clamp_(max=logits.shape[1] - 1)  # only rows with NaN go past the end
    return ids.squeeze(1), (shifted.gather(1, ids) - total.log()).squeeze(1), kept


def _kept(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Which tokens survive top-k and then top-p, bool [N, V]."""
    ordered, order = scaled.sort(stable=True, dim=-1, descending=True)
    outside = torch.arange(scaled.shape[1], device=scaled.device) >= top_k
    probabilities = ordered.masked_fill(outside, -math.inf).softmax(-1)
    before = F.pad(probabilities.cumsum(-1)[:, :-1], (1, 0))
    return torch.zeros_like(outside).scatter(1, order, (before < top_p) & ~outside)


def _column(values: np.ndarray, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype).unsqueeze(1)
