"""The trained modules: an actor that scores sampled tokens, a critic that values states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from envgym.learner.batch import Supports
from envgym.learner.distributed import assign

HEAD_CHUNK_ELEMENTS = 2**25
"""Logits held at once (tokens times vocabulary); more tokens are scored in chunks, recomputed in the backward pass."""


class Actor(nn.Module):
    """A causal language model that returns log-probabilities of given tokens instead of logits.

    Only the positions that are asked for go through the vocabulary head, and long batches go through it in chunks: the
    [B, T, vocabulary] tensor never exists.

    Args:
        lm: A Hugging Face causal language model.
    """

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm: Any = lm

    def forward(
        self,
        token_ids: Tensor,
        rows: Tensor,
        cols: Tensor,
        *,
        temperature: float,
        supports: Supports | None = None,
        with_entropy: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Scores the tokens at `(rows, cols)`.

        Args:
            token_ids: int64 [B, T], right-padded; causal attention keeps the padding out of every valid position.
            rows, cols: int64 [K]; `cols >= 1`, since a token is predicted by the position before it.
            temperature: Divides the logits.
            supports: The ids that each of the K tokens was drawn from; None is the whole vocabulary throughout.
            with_entropy: Whether to compute the entropy as well; zeros otherwise.

        Returns:
            (log-probabilities, entropies), both [K], nats, float32 or wider.
        """
        hidden = self.lm.model(input_ids=token_ids, use_cache=False).last_hidden_state
        states, targets = hidden[rows, cols - 1], token_ids[rows, cols]
        head = self.lm.lm_head
        size = max(1, HEAD_CHUNK_ELEMENTS // head.weight.shape[0])
        if states.shape[0] <= size:
            return _score(head, states, targets, supports, temperature, with_entropy)
        parts = [
            checkpoint(
                _score,
                head,
                states[i : i + size],
                targets[i : i + size],
                None if supports is None else supports[i : i + size],
                temperature,
                with_entropy,
                use_reentrant=False,
            )
            for i in range(0, states.shape[0], size)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _score(
    head: nn.Module, states: Tensor, targets: Tensor, supports: Supports | None, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if supports is not None:
        inside = (supports.sizes == 0)[:, None].repeat(1, logits.shape[1])
        tokens = torch.arange(len(targets), device=logits.device).repeat_interleave(supports.sizes)
        inside[tokens, supports.ids.long()] = True
        logits = logits.masked_fill(~inside, float("-inf"))
    logprobs = logits.log_softmax(dim=-1)
    # A copy: FSDP2 hooks onto module outputs and warns about views.
    chosen = logprobs.gather(1, targets[:, None]).squeeze(1).clone()
    if not with_entropy:
        return chosen, torch.zeros_like(chosen)
    # Outside the support p is 0 and log p is -inf; their product must be 0, in the gradient too.
    finite = torch.where(logits.isfinite(), logprobs, 0.0)
    return chosen, -(finite.exp() * finite).sum(dim=-1)


class Critic(nn.Module):
    """A decoder trunk with a scalar head: the value of the state after each token.

    Args:
        trunk: The Hugging Face decoder without its vocabulary head.
        hidden_size: Its width.
    """

    def __init__(self, trunk: Any, hidden_size: int) -> None:
        super().__init__()
        self.trunk: Any = trunk
        with torch.random.fork_rng(devices=[]):  # the caller's random stream is not ours to advance
            self.head = nn.Linear(hidden_size, 1, bias=False, dtype=next(trunk.parameters()).dtype)
        nn.init.zeros_(self.head.weight)

    def init_head(self, kind: str, *, seed: int) -> None:
        """Resets the value head to zeros, or to an orthogonal row, the same on every rank.

        Args:
            kind: "zero" or "orthogonal".
            seed: Seed of the orthogonal one.
        """
        with torch.no_grad():
            if kind == "zero":
                self.head.weight.zero_()
                return
            generator = torch.Generator().manual_seed(seed)
            row = torch.empty(self.head.weight.shape)
            nn.init.orthogonal_(row, generator=generator)
            assign(self.head.weight, row)

    def forward(self, token_ids: Tensor) -> Tensor:
        """The value of every state: entry t is V after token t.

        Args:
            token_ids: int64 [B, T], right-padded.

        Returns:
            [B, T], float32 or wider.
        """
        hidden = self.trunk(input_ids=token_ids, use_cache=False).last_hidden_state
        values = self.head(hidden).squeeze(-1).clone()
        return values.to(torch.promote_types(values.dtype, torch.float32))
