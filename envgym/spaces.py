"""A space of text that accepts any string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np

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

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        return [str(sample) for sample in sample_n]

    def __repr__(self) -> str:
        return f"TextSpace({len(self.examples)} examples)" if self.examples else "TextSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.examples == other.examples
