"""What an SGLang server should hold after an update: the names of its parameters and the checksum of each."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from envgym.engines.sglang.gpu_hash import gpu_hash
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

    A server on the CPU hashes with the first 8 bytes of SHA-256, one on a GPU with a hash of its own (see `gpu_hash`).
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
        _check_names(self._served, held)
        self._users: dict[str, list[str]] = {}
        for served, parts in self._served.items():
            for part in parts:
                self._users.setdefault(part, []).append(served)
        self._num_ranks, self._on_gpu = num_ranks, on_gpu
        self._waiting: dict[str, dict[str, Tensor]] = {}
        self._digests: dict[str, list[frozenset[str]]] = {}
        self._arrived: set[str] = set()

    def check(self, name: str, tensor: Tensor) -> None:
        """Whether a parameter may come next.

        Raises:
            WeightSyncError: It was not announced, came before, or has another shape than announced.
        """
        shape = self._shapes.get(name)
        if shape is None:
            raise WeightSyncError(f"parameter '{name}' was not announced; pass it to check_parameters too")
        if name in self._arrived:
            raise WeightSyncError(f"parameter '{name}' arrived twice in one update; send each once")
        if tuple(tensor.shape) != shape:
            raise WeightSyncError(
                f"parameter '{name}' has shape {tuple(tensor.shape)}, expected {shape}; send it whole"
            )

    def add(self, name: str, tensor: Tensor) -> None:
        """Takes a parameter, in the type the server keeps it in."""
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

    def check_complete(self) -> None:
        """Whether everything has come.

        Raises:
            WeightSyncError: Something has not.
        """
        missing = self._shapes.keys() - self._arrived
        if missing:
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


def _check_names(served: Mapping[str, tuple[str, ...]], held: Collection[str]) -> None:
    unknown = [parts[0] for name, parts in served.items() if name not in held]
    missing = [name for name in held if name not in served]
    problems = []
    if unknown:
        problems.append(
            f"it does not know {len(unknown)} parameters and would ignore them (the first is '{unknown[0]}')"
        )
    if missing:
        problems.append(f"{len(missing)} of its parameters would not be sent (the first is '{missing[0]}')")
    if problems:
        raise WeightSyncError("; ".join(problems) + "; serve a model of the architecture that is trained")


def _layer(name: str) -> str:
    return name.split(".")[-2] if "." in name else ""


def _part(name: str, tensor: Tensor, rank: int, num_ranks: int, kv_groups: int) -> Tensor:
    """What one tensor-parallel rank holds of a parameter."""
    layer = _layer(name)
    if layer in _VOCABULARY:
        tensor = _pad_vocabulary(tensor, num_ranks)
    if num_ranks == 1:
        return tensor
    if layer in _BY_ROWS:
        count = kv_groups if layer in ("k_proj", "v_proj") else num_ranks
        return tensor.tensor_split(count, dim=0)[rank * count // num_ranks]
    if layer in _BY_COLUMNS and tensor.dim() == 2:
        return tensor.tensor_split(num_ranks, dim=1)[rank]
    return tensor


def _pad_vocabulary(tensor: Tensor, num_ranks: int) -> Tensor:
    """The rows that a server adds to make the vocabulary a multiple of 64, all zero."""
    rows, multiple = tensor.shape[0], _VOCABULARY_MULTIPLE
    if -(-rows // multiple) * multiple % num_ranks:
        multiple *= num_ranks
    if rows % multiple == 0:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(-rows % multiple, *tensor.shape[1:])])


def _sha256(pieces: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()[:8].hex()
