"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = [p for folder in ("envgym", "environments", "agents", "examples") for p in (ROOT / folder).rglob("*.py")]
TEXT = [
    path
    for folder in ("envgym", "environments", "agents", "examples", "tests", "docs", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
] + [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".txt") or path.name == "Makefile"]

MAX_LINES = 450
FORBIDDEN_FILES = {"utils", "util", "common", "helpers", "helper", "base_class", "misc"}
FORBIDDEN_NAMES = {"done", "dones", "old_logprobs"}
"""An episode ends `terminated` or `truncated`; log-probabilities are behavior, proximal, current or reference."""


def names_in(tree: ast.Module) -> set[str]:
    """Every name the code gives: variables, arguments, keyword arguments, functions, fields and string keys."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.keyword(arg=str(name)) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.Constant(value=str(name)):
                found.add(name)
    return found


def test_no_module_of_the_package_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_files_are_named_after_what_they_hold() -> None:
    assert [str(p) for p in PACKAGE if FORBIDDEN_FILES & set(p.relative_to(ROOT).with_suffix("").parts)] == []


def test_names_that_blur_are_not_used() -> None:
    blurred = {}
    for path in PACKAGE:
        if found := FORBIDDEN_NAMES & names_in(ast.parse(path.read_text(encoding="utf-8"))):
            blurred[str(path.relative_to(ROOT))] = found
    assert blurred == {}


def test_no_path_of_a_particular_machine_is_written_anywhere() -> None:
    absolute = re.compile(r"(?<![\w.~$})\]-])/(?:home|root|Users|opt|mnt|srv|work)/\w+")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in TEXT
        for match in absolute.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
