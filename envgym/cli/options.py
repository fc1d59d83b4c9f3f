"""Options that several commands share: whole numbers, assignments such as `size=4`, environments in a call format."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from typing import Any

from envgym.env import TextEnv
from envgym.registry import arguments_of, make, spec

AN_ENV = "id of an environment, or module:id to import the module that registers it first"
ENVS = "ids of environments, or module:id to import the module first"


def assign(
    fields: dict[str, Any], changes: Sequence[str], option: str = "--set", kinds: Collection[str] = ()
) -> dict[str, Any]:
    """Applies each `section.field=value` in order; the value is JSON, or else a string.

    A `kind` comes before everything else, and a section that becomes another kind begins with its defaults.

    Args:
        fields: What is changed, in place.
        changes: What was typed.
        option: The option it was typed behind, for the message.
        kinds: The sections that have a `kind`.

    Returns:
        The fields.

    Raises:
        ValueError: A change is no assignment, or goes into something that has no fields.
    """
    chosen = {f"{section}.kind" for section in kinds}
    for change in sorted(changes, key=lambda change: change.partition("=")[0] not in chosen):
        path, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"{option} takes FIELD=VALUE, got '{change}'")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        inner: Any = fields
        *sections, field = path.split(".")
        for section in sections:
            if inner.get(section) is None:
                inner[section] = {}
            inner = inner[section]
            if not isinstance(inner, dict):
                raise ValueError(f"{option} {change}: '{section}' is not a section")
        if path in chosen and inner.get(field) != value:
            inner.clear()
        inner[field] = value
    return fields


def add_env_args(command: argparse.ArgumentParser) -> None:
    """Adds `--env-arg` to a command; `assign({}, arguments.env_arg, "--env-arg")` is what was said."""
    command.add_argument(
        "--env-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the environment: size=4"
    )


def make_in_format(env_id: str, call_format: str, *, max_turns: int | None = None, **kwargs: Any) -> TextEnv:
    """Makes an environment, in this call format where it has the choice and none is among its arguments."""
    if "call_format" in (arguments_of(spec(env_id)) or ()):
        kwargs = {"call_format": call_format, **kwargs}
    return make(env_id, max_turns=max_turns, **kwargs)


def positive(text: str) -> int:
    """A whole number from 1, as the type of an argument."""
    return _number(text, 1)


def seed(text: str) -> int:
    """A whole number from 0, as the type of an argument."""
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if not least <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be from {least} to 2**63 - 1, got {text}")
    return value
