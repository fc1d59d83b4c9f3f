"""A space of text that accepts any string, and how such texts pass between processes in shared memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from ctypes import c_uint8
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

SHARED_MEMORY_BYTES = 65536
"""UTF-8 bytes of the longest observation that fits the shared memory of an asynchronous vector environment.

A longer one is an error there, never cut; with `shared_memory=False` there is no bound.
"""
_SIZE_BYTES = 4
_SLOT_BYTES = _SIZE_BYTES + SHARED_MEMORY_BYTES
_ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789"


class TextSpace(gymnasium.Space[str]):
    """Any string. `sample` draws one of `examples`, or random lower-case text where there are none.

    `gymnasium.spaces.Text` admits a fixed alphabet and length only; what a language model writes has neither.

    Args:
        examples: Strings that `sample` chooses from, for example well-formed actions for a random agent.
        seed: Seed of the sampler.

    Raises:
        ValueError: An example is not a string.
    """

    def __init__(self, examples: Sequence[str] = (), *, seed: int | np.random.Generator | None = None) -> None:
        for example in examples:
            if not isinstance(example, str):
                raise ValueError(f"examples of a text space are strings, got {example!r}")
        self.examples = tuple(examples)
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draws one example, or 1-32 random characters. Masks do not apply to text.

        Raises:
            ValueError: A mask or a probability was given.
        """
        if mask is not None or probability is not None:
            raise ValueError("a text space takes neither mask nor probability")
        if self.examples:
            return self.examples[int(self.np_random.integers(len(self.examples)))]
        length = int(self.np_random.integers(1, 33))
        return "".join(_ALPHABET[i] for i in self.np_random.integers(len(_ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"TextSpace({len(self.examples)} examples)" if self.examples else "TextSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.examples == other.examples


class SharedTexts(Sequence[str]):
    """The present observations of all environments, read from shared memory when asked for.

    `copy.deepcopy` gives a tuple of strings; Gymnasium does that unless it was told not to copy.

    Args:
        memory: What `create_shared_memory` made: for each environment the size, 4 bytes, and room for the text.
        num_envs: Number of environments.
    """

    def __init__(self, memory: Any, num_envs: int) -> None:
        self._slots = np.frombuffer(memory.get_obj(), dtype=np.uint8).reshape(num_envs, _SLOT_BYTES)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        slot = self._slots[index]
        size = int.from_bytes(slot[:_SIZE_BYTES].tobytes(), "little")
        return slot[_SIZE_BYTES : _SIZE_BYTES + size].tobytes().decode("utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@create_shared_memory.register(TextSpace)
def _create_text_memory(space: TextSpace, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * _SLOT_BYTES)


@read_from_shared_memory.register(TextSpace)
def _read_texts(space: TextSpace, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory, n)


@write_to_shared_memory.register(TextSpace)
def _write_text(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:
    data = value.encode("utf-8", "surrogatepass")
    if len(data) > SHARED_MEMORY_BYTES:
        raise ValueError(
            f"an observation of {len(data)} bytes does not fit the shared memory of a vector environment, which holds "
            f"{SHARED_MEMORY_BYTES} for each; make it with shared_memory=False"
        )
    slot = np.frombuffer(shared_memory.get_obj(), dtype=np.uint8)[index * _SLOT_BYTES : (index + 1) * _SLOT_BYTES]
    content = len(data).to_bytes(_SIZE_BYTES, "little") + data
    slot[: len(content)] = np.frombuffer(content, dtype=np.uint8)
