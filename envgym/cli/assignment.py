"""`FIELD=VALUE`, as options of the command line take it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def assign(fields: dict[str, Any], change: str, option: str = "--set") -> None:
    """Applies one `section.field=value`; the value is JSON, or else a string.

    Args:
        fields: What is changed, in place.
        change: What was typed.
        option: The option it was typed behind, for the message.

    Raises:
        ValueError: It is no assignment, or goes into something that has no fields.
    """
    path, value = _parsed(change, option)
    *sections, field = path.split(".")
    for section in sections:
        inner = fields.setdefault(section, {})
        if inner is None:
            inner = fields[section] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{option} {change}: '{section}' is not a section")
        fields = inner
    fields[field] = value


def assign_all(fields: dict[str, Any], changes: Sequence[str], kinds: Mapping[str, str]) -> None:
    """Applies what was typed behind `--set`, in order, but the `kind` of a section before its other fields.

    A section that becomes another kind starts from the defaults of that kind; see `set_kind`.

    Args:
        fields: What is changed, in place.
        changes: What was typed.
        kinds: The sections that have a `kind`, and which one each is where `fields` lacks it.

    Raises:
        ValueError: See `assign`.
    """
    paths = [_parsed(change, "--set")[0] for change in changes]
    kind_of = {f"{section}.kind": section for section in kinds}

    def place(number: int) -> tuple[int, bool]:
        if paths[number] not in kind_of:
            return number, True
        section = kind_of[paths[number]]
        return next(i for i, path in enumerate(paths) if path.startswith(f"{section}.")), False

    for number in sorted(range(len(changes)), key=place):
        section, dot, _ = paths[number].partition(".")
        if dot and section in kinds:
            fields.setdefault(section, {"kind": kinds[section]})
        if paths[number] in kind_of:
            set_kind(fields, section, _parsed(changes[number], "--set")[1])
        else:
            assign(fields, changes[number])


def set_kind(fields: dict[str, Any], section: str, kind: Any) -> None:
    """Makes a section one of this kind: left as it is where it is one, else emptied of the fields of the other kind.

    Args:
        fields: What is changed, in place.
        section: Name of the section.
        kind: Its `kind`.
    """
    present = fields.get(section)
    if not isinstance(present, dict) or present.get("kind") != kind:
        fields[section] = {"kind": kind}


def _parsed(change: str, option: str) -> tuple[str, Any]:
    """Path and value of an assignment.

    Raises:
        ValueError: It is none.
    """
    path, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"{option} takes FIELD=VALUE, got '{change}'")
    try:
        return path, json.loads(text)
    except ValueError:
        return path, text
