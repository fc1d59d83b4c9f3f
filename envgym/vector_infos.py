"""The infos of many copies as one dictionary, in Gymnasium's form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

_NUMBERS = (bool, int, float)
_KNOWN = frozenset({"reward_components", "role", "action_error", "success", "truncation_reason"})
"""Keys of every environment. Only the components are a dictionary, and they hold none."""


_UNBUILT: Any = object()
"""Key under which infos wait for their arrays; never seen through the methods of `VectorInfos`."""


class VectorInfos(dict[str, Any]):
    """What `batch_infos` gives, with the arrays of a key made when it is first asked for.

    `infos["success"]`, `infos.get(...)` and `"final_info" in infos` make no more than they need; everything else that
    looks at the dictionary makes all of it. Copies of any kind, pickles included, are plain dictionaries.

    Args:
        infos: The infos, one of each copy, as `frozen_infos` gives them.
    """

    # Code in C may read the dictionary itself, past the methods below. The entry of the infos keeps it from looking
    # empty there: `json` then asks the methods, and others stumble over a key that is no string.

    def __init__(self, infos: Sequence[Mapping[str, Any]]) -> None:
        dict.__setitem__(self, _UNBUILT, infos)

    def _complete(self) -> None:
        """Makes all that is not yet there; what was handed out or set by the caller stays."""
        infos = dict.get(self, _UNBUILT)
        if infos is not None:
            self._add(infos)
            dict.pop(self, _UNBUILT, None)

    def _add(self, infos: Sequence[Mapping[str, Any]]) -> None:
        for key, values in batch_infos(infos).items():
            dict.setdefault(self, key, values)

    def __missing__(self, key: Any) -> Any:
        if key not in self:
            raise KeyError(key)
        if not dict.__contains__(self, key):
            name, infos = key.removeprefix("_"), dict.__getitem__(self, _UNBUILT)
            self._add([{name: info[name]} if name in info else {} for info in infos])
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return key is not _UNBUILT
        names = set(chain.from_iterable(dict.get(self, _UNBUILT, ())))
        if any(not isinstance(name, str) or name[:1] == "_" for name in names):
            self._complete()  # the mask of one entry may take the place of another
            return dict.__contains__(self, key)
        return isinstance(key, str) and (key in names or (key[:1] == "_" and key[1:] in names))

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[str]:
        self._complete()
        return dict.__reversed__(self)

    def __len__(self) -> int:
        self._complete()
        return dict.__len__(self)

    def keys(self) -> Any:
        self._complete()
        return dict.keys(self)

    def values(self) -> Any:
        self._complete()
        return dict.values(self)

    def items(self) -> Any:
        self._complete()
        return dict.items(self)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, VectorInfos) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.copy())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __delitem__(self, key: str) -> None:
        self._complete()
        dict.__delitem__(self, key)

    def pop(self, *arguments: Any) -> Any:
        self._complete()
        return dict.pop(self, *arguments)

    def popitem(self) -> tuple[str, Any]:
        self._complete()
        return dict.popitem(self)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._complete()
        return dict.setdefault(self, key, default)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def frozen_infos(infos: Collection[dict[str, Any]]) -> list[dict[str, Any]]:
    """Copies of infos, of the dictionaries in them too: what an environment later does to its own is not seen there."""
    if not _KNOWN.issuperset(chain.from_iterable(infos)):
        return list(map(frozen_info, infos))
    copies = [info.copy() for info in infos]
    for info in copies:
        components = info.get("reward_components")
        if components is not None:
            info["reward_components"] = components.copy()
    return copies


def frozen_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """One of `frozen_infos`."""
    return {key: frozen_info(value) if type(value) is dict else value for key, value in info.items()}


def batch_infos(
    infos: Sequence[Mapping[str, Any]], where: Sequence[int] | None = None, num_envs: int | None = None
) -> dict[str, Any]:
    """Infos of several copies as one, in Gymnasium's form: an array for each key, and under `_key` who has it.

    Dictionaries are batched in turn. Numbers become an array of their type, of float64 where their types differ, with 0
    for copies that have none; arrays of one shape and type are stacked, with zeros. Anything else becomes an array of
    objects, with None, and so do final observations and integers beyond 64 bits.

    Args:
        infos: The infos.
        where: The copy that each is from; None where all copies have one.
        num_envs: Number of copies; None where all have one.
    """
    size = len(infos) if num_envs is None else num_envs
    batched: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(infos)):
        try:
            values, rows = [info[key] for info in infos], where
        except KeyError:
            having = [(row, info[key]) for row, info in zip(where or range(size), infos, strict=True) if key in info]
            rows, values = map(list, zip(*having, strict=True))
        batched[key] = _spread(values, rows, size, object) if key == "final_obs" else _column(values, rows, size)
        batched[f"_{key}"] = mask = np.zeros(size, dtype=np.bool_)
        mask[slice(None) if rows is None else rows] = True
    return batched


def _column(values: list[Any], rows: Sequence[int] | None, size: int) -> Any:
    kinds = set(map(type, values))
    if kinds == {dict}:
        return batch_infos(values, rows, size)
    if all(kind in _NUMBERS or issubclass(kind, np.number) for kind in kinds):
        try:
            return _spread(values, rows, size, kinds.pop() if len(kinds) == 1 else np.float64)
        except OverflowError:
            return _spread(values, rows, size, object)
    if kinds == {np.ndarray} and len({(value.shape, value.dtype) for value in values}) == 1:
        stacked = np.zeros((size, *values[0].shape), dtype=values[0].dtype)
        stacked[slice(None) if rows is None else rows] = values
        return stacked
    return _spread(values, rows, size, object)


def _spread(values: list[Any], rows: Sequence[int] | None, size: int, dtype: Any) -> npt.NDArray[Any]:
    """An array with the values at some rows."""
    column = np.fromiter(values, dtype=dtype, count=len(values))  # never looks into lists, as np.array does
    if rows is None:
        return column
    array = np.empty(size, dtype=object) if dtype is object else np.zeros(size, dtype=dtype)
    array[rows] = column
    return array
