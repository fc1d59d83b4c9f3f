"""The hash by which SGLang names the contents of a tensor on a GPU, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK32, _MASK64 = 2**32 - 1, 2**64 - 1
_SEEDS = (0x243F6A88, ((0x243F6A88 * 0x9E3779B1) ^ 0xDEADBEEF) & _MASK32)
_POSITIONS, _ROTATIONS = (0x27D4EB2D, 0x165667B1), (15, 13)
_MIXERS = (0x85EBCA6B, 0xC2B2AE35)
_TILE_WORDS = 8192
_CHUNK_TILES = 512
"""Tiles hashed at once; a chunk takes 32 MiB for each of a few temporaries."""


def gpu_hash(tensor: Tensor) -> str:
    """The 64-bit hash of a tensor's bytes as 16 hexadecimal digits, computed on the tensor's device.

    With words w_i of 32 bits, in tiles of 8192: each word is mixed with its position under two seeds, a tile is the two
    sums of its words mixed with the length, and the hash is the mixed sum of its tiles (SGLang 0.5.23,
    `gpu_tensor_hash`).
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    padding = -data.numel() % 4
    if padding:
        data = torch.cat([data, data.new_zeros(padding)])
    words = data.view(torch.int32)
    count = words.numel()
    if count == 0:
        return f"{0:016x}"
    total = 0
    for start in range(0, count, _CHUNK_TILES * _TILE_WORDS):
        chunk = words[start : start + _CHUNK_TILES * _TILE_WORDS].to(torch.int64) & _MASK32
        index = torch.arange(start, start + chunk.numel(), device=words.device)
        halves = [
            _tiles(_mix((chunk ^ _position(index, *place)) & _MASK32), count)
            for place in zip(_POSITIONS, _SEEDS, _ROTATIONS, strict=True)
        ]
        high, low = (int(half.sum()) for half in halves)
        total += (high << 32) + low
    return f"{_finish(total & _MASK64):016x}"


def _tiles(mixed: Tensor, count: int) -> Tensor:
    padded = torch.nn.functional.pad(mixed, (0, -mixed.numel() % _TILE_WORDS))
    sums = padded.view(-1, _TILE_WORDS).sum(1) & _MASK32
    return _mix(sums ^ (4 * count & _MASK32))


def _position(index: Tensor, factor: int, seed: int, rotation: int) -> Tensor:
    index = index & _MASK32
    rotated = ((index << rotation) | (index >> (32 - rotation))) & _MASK32
    return ((index * factor + seed) & _MASK32) ^ rotated


def _mix(x: Tensor) -> Tensor:
    """MurmurHash3's finaliser; products wrap at 64 bits, which leaves the lower 32 right."""
    x = x ^ (x >> 16)
    x = (x * _MIXERS[0]) & _MASK32
    x = x ^ (x >> 13)
    x = (x * _MIXERS[1]) & _MASK32
    return x ^ (x >> 16)


def _finish(x: int) -> int:
    x ^= x >> 30
    x = (x * 0xBF58476D1CE4E5B9) & _MASK64
    x ^= x >> 27
    x = (x * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)
