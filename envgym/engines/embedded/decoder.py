"""Lean inference for llama, qwen2 and qwen3 decoders over a cache with one slot per sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from envgym.engines.embedded.weights import DecoderShape, DecoderWeights, LayerWeights

_PIECE = 512
"""Most tokens of one sequence that one prefill pass takes."""
_MAX_SCORES = 1 << 24
"""Most attention scores of one prefill pass (64 MB in float32)."""


class Decoder:
    """A decoder and the keys and values of the sequences it is in the middle of.

    A slot holds one sequence. The cache grows by doubling, in slots as in positions, as `reserve` is asked for more.
    What lies beyond a slot's own length is never read: attention is masked by position.
    """

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        self.shape = shape
        self.weights = weights
        self.num_slots = 0
        self.capacity = 0
        self._device, self._dtype = weights.embedding.device, weights.embedding.dtype
        self._keys: list[torch.Tensor] = []  # per layer [slots, kv_heads, head_dim, capacity], ready for the product
        self._values: list[torch.Tensor] = []  # per layer [slots, kv_heads, capacity, head_dim]
        with torch.inference_mode():
            angles = torch.outer(torch.arange(shape.context_length).float(), shape.inverse_frequencies)
            self._rotations = (torch.polar(torch.ones_like(angles), angles) * shape.rope_scaling).to(self._device)
            self._columns = torch.arange(shape.context_length, device=self._device)

    def reserve(self, num_slots: int, length: int) -> None:
        """Makes room for slots `[0, num_slots)` of `length` tokens each; what they hold is kept."""
        if num_slots <= self.num_slots and length <= self.capacity:
            return
        slots, capacity = self.num_slots, max(self.capacity, 64)
        while slots < num_slots:
            slots = max(2 * slots, 8)
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, max(self.shape.context_length, length))
        kv_heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        with torch.inference_mode():
            for _ in range(self.shape.num_layers):
                keys = torch.zeros(slots, kv_heads, head_dim, capacity, dtype=self._dtype, device=self._device)
                values = torch.zeros(slots, kv_heads, capacity, head_dim, dtype=self._dtype, device=self._device)
                if self.num_slots:
                    keys[: self.num_slots, :, :, : self.capacity] = self._keys.pop(0)
                    values[: self.num_slots, :, : self.capacity] = self._values.pop(0)
                self._keys.append(keys)
                self._values.append(values)
        self.num_slots, self.capacity = slots, capacity

    @torch.inference_mode()
    def decode(self, tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray | None, length: int) -> torch.Tensor:
        """Appends one token to each sequence and predicts the next.

        Args:
            tokens: int64 [N], the token to append.
            positions: int64 [N], how many tokens the slot holds before it.
            slots: int64 [N], the slots, or None for slots 0 to N - 1, which spares a copy of the cache.
            length: Cached positions to attend to: the largest of `positions` plus 1, over the rows whose result
                matters.

        Returns:
            Logits [N, vocab_size] in the decoder's dtype.
        """
        num_rows, kv_heads = len(tokens), self.shape.num_kv_heads
        ids, at = self._to_device(tokens), self._to_device(positions)
        rows = self._columns[:num_rows] if slots is None else self._to_device(slots)
        hidden = self.weights.embedding.index_select(0, ids)
        rotations = self._rotations.index_select(0, at).unsqueeze(1)
        mask = torch.zeros(num_rows, length, dtype=self._dtype, device=self._device)
        mask.masked_fill_(self._columns[:length] > at.unsqueeze(1), -math.inf)
        mask = mask.repeat_interleave(kv_heads, 0).unsqueeze(1)
        groups = self.shape.num_heads // kv_heads
        scale = self.shape.head_dim**-0.5
        for index, layer in enumerate(self.weights.layers):
            queries, new_keys, new_values = self._project(layer, hidden, rotations)
            keys, values = self._keys[index], self._values[index]
            keys[rows, :, :, at] = new_keys
            values[rows, :, at] = new_values
            if slots is None:
                keys, values = keys[:num_rows, :, :, :length], values[:num_rows, :, :length]
            else:
                keys = keys[:, :, :, :length].index_select(0, rows)
                values = values[:, :, :length].index_select(0, rows)
            queries = queries.reshape(num_rows * kv_heads, groups, -1)
            scores = torch.baddbmm(mask, queries, keys.flatten(0, 1), alpha=scale)
            mixed = torch.bmm(scores.softmax(-1), values.flatten(0, 1))
            hidden = self._finish_layer(layer, hidden, mixed.view(num_rows, -1))
        return F.linear(self._norm(hidden, self.weights.norm), self.weights.head)

    def prefill(self, tokens: Sequence[np.ndarray], starts: Sequence[int], slots: Sequence[int]) -> None:
        """Appends several tokens to each of several sequences; nothing is predicted.

        Args:
            tokens: For each sequence its new tokens, int64 [its own number], at least one.
            starts: For each sequence how many tokens its slot holds before them.
            slots: For each sequence its slot; no slot twice.
        """
        fed = [0] * len(tokens)
        while True:
            left = [i for i in range(len(tokens)) if fed[i] < len(tokens[i])]
            if not left:
                return
            pieces = {i: tokens[i][fed[i] : fed[i] + _PIECE] for i in left}
            left.sort(key=lambda i: (len(pieces[i]), slots[i]))
            while left:
                begins = [starts[i] + fed[i] for i in left]
                size = self._wave_size([len(pieces[i]) for i in left], begins)
                wave, left = left[:size], left[size:]
                self._prefill_wave([pieces[i] for i in wave], begins[:size], [slots[i] for i in wave])
                for i in wave:
                    fed[i] += len(pieces[i])

    def _wave_size(self, widths: list[int], begins: list[int]) -> int:
        """How many of the sequences, sorted by width, go in one pass: little padding and bounded memory."""
        longest = 0
        for count, (width, begin) in enumerate(zip(widths, begins, strict=True)):
            longest = max(longest, begin + width)
            scores = (count + 1) * self.shape.num_heads * width * longest
            if count and (width > 2 * widths[0] + 16 or scores > _MAX_SCORES):
                return count
        return len(widths)

    @torch.inference_mode()
    def _prefill_wave(self, tokens: list[np.ndarray], starts: list[int], slots: list[int]) -> None:
        num_rows, num_heads = len(tokens), self.shape.num_heads
        kv_heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        widths = np.array([len(ids) for ids in tokens])
        width, length = int(widths.max()), int((widths + starts).max())
        row_of = np.repeat(np.arange(num_rows), widths)
        column_of = np.arange(len(row_of)) - np.repeat(np.cumsum(widths) - widths, widths)
        first = np.asarray(starts, dtype=np.int64)
        at, row, column = (self._to_device(x) for x in (first[row_of] + column_of, row_of, column_of))
        slot = self._to_device(np.asarray(slots, dtype=np.int64))
        slot_of = slot[row]
        ends = self._to_device(first)[:, None] + self._columns[:width]
        mask = self._columns[:length] > ends[:, :, None]  # [rows, width, length]
        hidden = self.weights.embedding.index_select(0, self._to_device(np.concatenate(tokens)))
        rotations = self._rotations.index_select(0, at).unsqueeze(1)
        padded = torch.zeros(num_rows, width, num_heads, head_dim, dtype=self._dtype, device=self._device)
        last = self.shape.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            queries, new_keys, new_values = self._project(layer, hidden, rotations)
            self._keys[index][slot_of, :, :, at] = new_keys
            self._values[index][slot_of, :, at] = new_values
            if index == last:
                return  # only the cache is wanted
            keys = self._keys[index][:, :, :, :length].index_select(0, slot)
            values = self._values[index][:, :, :length].index_select(0, slot)
            padded[row, column] = queries
            grouped = padded.transpose(1, 2).reshape(num_rows * kv_heads, -1, head_dim)  # [., group * width, .]
            scores = torch.bmm(grouped, keys.flatten(0, 1)).mul_(head_dim**-0.5)
            scores.view(num_rows, num_heads, width, length).masked_fill_(mask[:, None], -math.inf)
            mixed = torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(num_rows, num_heads, width, head_dim)
            hidden = self._finish_layer(layer, hidden, mixed[row, :, column].flatten(1))

    def _project(
        self, layer: LayerWeights, hidden: torch.Tensor, rotations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries [T, heads, head_dim], rotated keys and values [T, kv_heads, head_dim]."""
        shape = self.shape
        fused = _linear(self._norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        fused = fused.view(len(hidden), -1, shape.head_dim)
        rotated_heads = shape.num_heads + shape.num_kv_heads
        both = fused[:, :rotated_heads]
        if layer.head_norms is not None:
            both = F.rms_norm(both, (shape.head_dim,), None, shape.norm_eps) * layer.head_norms
        both = torch.view_as_complex(both.float().unflatten(-1, (-1, 2))) * rotations
        both = torch.view_as_real(both).flatten(-2).to(self._dtype)
        return both[:, : shape.num_heads], both[:, shape.num_heads :], fused[:, rotated_heads:]

    def _finish_layer(self, layer: LayerWeights, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Output projection and MLP, each with its residual."""
        hidden = torch.addmm(hidden, mixed, layer.output)
        if layer.output_bias is not None:
            hidden += layer.output_bias
        gate, up = _linear(self._norm(hidden, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
        if layer.down_bias is not None:
            hidden += layer.down_bias
        return hidden

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, (self.shape.hidden_size,), weight, self.shape.norm_eps)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
