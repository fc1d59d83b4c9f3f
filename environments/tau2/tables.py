"""Databases shared between episodes: private copies made record by record, and what an episode changed."""

from __future__ import annotations

import copy
import json
from typing import Any

from pydantic import BaseModel


class SharedTable(dict[Any, Any]):
    """A table whose records stay those of the shared database until they are handed out.

    A record is replaced by a private copy the first time it is read through Python, so no holder of this table can
    reach a shared record. Pydantic's serialiser and `dict.get(table, key)` read the storage itself and copy nothing.

    Args:
        records: The shared table.
    """

    def __init__(self, records: dict[Any, Any]) -> None:
        super().__init__(records)
        self._shared = set(records)

    def __getitem__(self, key: Any) -> Any:
        if key in self._shared:
            self._shared.discard(key)
            super().__setitem__(key, private(super().__getitem__(key)))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._shared.discard(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self._shared.discard(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - that would be this method

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        key = next(reversed(self))
        return key, self.pop(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def values(self) -> list[Any]:  # type: ignore[override]
        return [self[key] for key in self]

    def items(self) -> list[tuple[Any, Any]]:  # type: ignore[override]
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(dict.__getitem__(self, key), memo) for key in self}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


def private(value: Any) -> Any:
    """A copy of a record or database that shares nothing mutable with it; tables inside are copied on use."""
    if isinstance(value, BaseModel):
        copied = value.model_copy()
        for name, part in copied.__dict__.items():
            if not isinstance(part, _PLAIN):
                copied.__dict__[name] = private(part)
        return copied
    if isinstance(value, dict):
        return SharedTable(value)
    if isinstance(value, list):
        return [private(part) for part in value]
    return value if isinstance(value, _PLAIN) else copy.deepcopy(value)


_PLAIN = (str, int, float, bool, type(None))


def changes(base: BaseModel, database: BaseModel) -> dict[tuple[str, Any], str | None]:
    """What a database holds that its base does not: JSON of every record that differs, None for one that is gone.

    Two databases of one base have equal changes exactly when tau2's hashes of them are equal: the hash is taken over
    the same JSON with sorted keys. Records that were never handed out are not looked at.
    """
    found: dict[tuple[str, Any], str | None] = {}
    for name, before in base.__dict__.items():
        after = database.__dict__[name]
        if not (isinstance(before, dict) and isinstance(after, dict)):
            old, new = _json(_field(base, name)), _json(_field(database, name))
            if old != new:
                found[name, None] = new
            continue
        for key in {**before, **dict.fromkeys(after)}:
            old_record, new_record = before.get(key), dict.get(after, key)
            if old_record is new_record:
                continue
            record = _json(new_record) if key in after else None
            if key not in before or record != _json(old_record):
                found[name, key] = record
    return found


def _field(database: BaseModel, name: str) -> Any:
    return database.model_dump(include={name}, warnings=False)[name]


def _json(value: Any) -> str:
    plain = value.model_dump(warnings=False) if isinstance(value, BaseModel) else value
    return json.dumps(plain, sort_keys=True, default=str)
