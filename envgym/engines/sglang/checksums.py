"""What an SGLang server should hold after an update: the names of its parameters and the checksum of each."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from envgym.errors import WeightSyncError
from envgym.weights import Shapes

_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""Layers that the server keeps as one, their rows in this order."""

_VOCABULARY = ("embed_tokens", "lm_head")
_BY_ROWS = (*_FUSED, *_VOCABULARY)
_BY_COLUMNS = ("o_proj", "down_proj")
_VOCABULARY_MULTIPLE = 64
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"

_MASK32, _MASK64 = 2**32 - 1, 2**64 - 1
_SEEDS = (0x243F6A88, ((0x243F6A88 * 0x9E3779B1) ^ 0xDEADBEEF) & _MASK32)
_POSITIONS, _ROTATIONS = (0x27D4EB2D, 0x165667B1), (15, 13)
_MIXERS = (0x85EBCA6B, 0xC2B2AE35)
_TILE_WORDS = 8192
_CHUNK_TILES = 512
"""Tiles hashed at once; a chunk takes 32 MiB for each of a few temporaries."""


def served_parameters(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each parameter a server holds, the Hugging Face parameters it is made of, in the order of its rows."""
    places: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        pieces = name.split(".")
        place = 0
        if len(pieces) > 1 and pieces[-2] in _FUSED:
            pieces[-2], place = _FUSED[pieces[-2]]
        places.setdefault(".".join(pieces), []).append((place, name))
    return {served: tuple(name for _, name in sorted(parts)) for served, parts in places.items()}


class ExpectedWeights:
    """Checksums of an update as a server computes them, collected while its parameters pass by.

    A server on the CPU hashes with the first 8 bytes of SHA-256, one on a GPU with a hash of its own (`gpu_hash`).
    With tensor parallelism every rank holds a part. Parts of fused parameters are kept until the last one has come;
    nothing else is.

    Args:
        shapes: What the update will bring.
        held: Names of the server's parameters.
        num_ranks: Size of its tensor parallelism.
        on_gpu: Whether it serves on a GPU.

    Raises:
        WeightSyncError: The server holds other parameters. It would ignore those it does not know.
    """

    def __init__(self, shapes: Shapes, held: Collection[str], *, num_ranks: int = 1, on_gpu: bool = False) -> None:
        self._shapes = dict(shapes)
        self._served = served_parameters(shapes)
        if _HEAD in held and _HEAD not in shapes and _EMBEDDING in shapes:
            self._served[_HEAD] = (_EMBEDDING,)  # tied here, kept twice there
        problems = []
        if unknown := [parts[0] for name, parts in self._served.items() if name not in held]:
            problems.append(
                f"it does not know {len(unknown)} parameters and would ignore them (the first is '{unknown[0]}')"
            )
        if missing := [name for name in held if name not in self._served]:
            problems.append(f"{len(missing)} of its parameters would not be sent (the first is '{missing[0]}')")
        if problems:
            raise WeightSyncError("; ".join(problems) + "; serve a model of the architecture that is trained")
        self._users: dict[str, list[str]] = {}
        for served, parts in self._served.items():
            for part in parts:
                self._users.setdefault(part, []).append(served)
        self._num_ranks, self._on_gpu = num_ranks, on_gpu
        self._waiting: dict[str, dict[str, Tensor]] = {}
        self._digests: dict[str, list[frozenset[str]]] = {}
        self._arrived: set[str] = set()

    def take(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Takes the next parameter, and returns it in the type the server keeps it in.

        Raises:
            WeightSyncError: It was not announced, came before, or has another shape than announced.
        """
        shape = self._shapes.get(name)
        if shape is None:
            raise WeightSyncError(f"parameter '{name}' was not announced")
        if name in self._arrived:
            raise WeightSyncError(f"parameter '{name}' arrived twice in one update; send each once")
        if tuple(tensor.shape) != shape:
            raise WeightSyncError(
                f"parameter '{name}' has shape {tuple(tensor.shape)}, expected {shape}; send it whole"
            )
        tensor = tensor.detach().to(dtype).contiguous()
        self._arrived.add(name)
        for served in self._users[name]:
            parts = self._served[served]
            waiting = self._waiting.setdefault(served, {})
            if len(waiting) + 1 < len(parts):
                waiting[name] = tensor.clone()
                continue
            waiting[name] = tensor
            whole = {part: waiting[part] for part in parts}
            self._digests[served] = [frozenset(self._digest(whole, rank)) for rank in range(self._num_ranks)]
            del self._waiting[served]
        return tensor

    def check_complete(self) -> None:
        """Whether everything has come.

        Raises:
            WeightSyncError: Something has not.
        """
        if missing := self._shapes.keys() - self._arrived:
            raise WeightSyncError(
                f"{len(missing)} parameters did not arrive (the first is '{min(missing)}'); send all of them"
            )

    def check_served(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Compares the checksums of a server's ranks with those expected.

        Raises:
            WeightSyncError: A parameter differs.
        """
        if len(ranks) != self._num_ranks:
            raise WeightSyncError(f"{len(ranks)} ranks of the server gave checksums, expected {self._num_ranks}")
        differing = [
            name
            for name, digests in self._digests.items()
            if any(rank.get(name) not in digest for rank, digest in zip(ranks, digests, strict=True))
        ]
        if differing:
            raise WeightSyncError(
                f"{len(differing)} of the server's {len(self._digests)} parameters are not what was sent (the first is "
                f"'{differing[0]}')"
            )

    def _digest(self, parts: Mapping[str, Tensor], rank: int) -> Iterator[str]:
        """What a rank's part of a parameter may hash to: with fewer key and value heads than ranks, some share one."""
        groups = [self._num_ranks]
        if any(_layer(name) == "k_proj" for name in parts):
            groups = [n for n in range(1, self._num_ranks + 1) if self._num_ranks % n == 0]
        for kv_groups in groups:
            pieces = [_part(name, tensor, rank, self._num_ranks, kv_groups) for name, tensor in parts.items()]
            yield gpu_hash(torch.cat(pieces)) if self._on_gpu else _sha256(pieces)


def _layer(name: str) -> str:
    return name.split(".")[-2] if "." in name else ""


def _part(name: str, tensor: Tensor, rank: int, num_ranks: int, kv_groups: int) -> Tensor:
    """What one tensor-parallel rank holds of a parameter."""
    layer = _layer(name)
    if layer in _VOCABULARY:  # padded with rows of zeros to a multiple of 64
        rows, multiple = tensor.shape[0], _VOCABULARY_MULTIPLE
        if -(-rows // multiple) * multiple % num_ranks:
            multiple *= num_ranks
        if rows % multiple:
            tensor = torch.cat([tensor, tensor.new_zeros(-rows % multiple, *tensor.shape[1:])])
    if num_ranks == 1:
        return tensor
    if layer in _BY_ROWS:
        count = kv_groups if layer in ("k_proj", "v_proj") else num_ranks
        return tensor.tensor_split(count, dim=0)[rank * count // num_ranks]
    if layer in _BY_COLUMNS and tensor.dim() == 2:
        return tensor.tensor_split(num_ranks, dim=1)[rank]
    return tensor


def _sha256(pieces: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()[:8].hex()


def gpu_hash(tensor: Tensor) -> str:
    """The 64-bit hash of a tensor's bytes as 16 hexadecimal digits, computed on the tensor's device.

    With words w_i of 32 bits, in tiles of 8192: each word is mixed with its position under two seeds, a tile is the two
    sums of its words mixed with the length, and the hash is the mixed sum of its tiles (SGLang 0.5.23,
    `gpu_tensor_hash`).
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(data, (0, -data.numel() % 4)).view(torch.int32)
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
    total &= _MASK64
    total = ((total ^ (total >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    total = ((total ^ (total >> 27)) * 0x94D049BB133111EB) & _MASK64
    return f"{total ^ (total >> 31):016x}"


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
    x = ((x ^ (x >> 16)) * _MIXERS[0]) & _MASK32
    x = ((x ^ (x >> 13)) * _MIXERS[1]) & _MASK32
    return x ^ (x >> 16)
