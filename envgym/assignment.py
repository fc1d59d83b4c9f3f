"""`FIELD=VALUE`, as options of the command line take it."""

from __future__ import annotations

import json
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
    path, equals, text = change.partition("=")
    if not equals:
        raise ValueError(f"{option} takes FIELD=VALUE, got '{change}'")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *sections, field = path.split(".")
    for section in sections:
        inner = fields.setdefault(section, {})
        if inner is None:
            inner = fields[section] = {}
        if not isinstance(inner, dict):
            raise ValueError(f"{option} {change}: '{section}' is not a section")
        fields = inner
    fields[field] = value
