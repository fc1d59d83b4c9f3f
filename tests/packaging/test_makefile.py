"""What the targets of the Makefile would do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands(target: str) -> str:
    """The commands of a target on a machine on which nothing is made yet."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.check_output(["make", "--dry-run", "--always-make", target], cwd=ROOT, env=environment, text=True)


def test_the_quick_start_installs_no_bridges_and_the_tests_do() -> None:
    assert "bridges.txt" not in commands("quickstart") and "envgym quickstart" in commands("quickstart")
    assert "--no-deps -r bridges.txt" in commands("install")
    assert "--no-deps -r bridges.txt" in commands("test") and "-m pytest" in commands("test")


def test_help_names_every_target_for_people() -> None:
    shown = subprocess.check_output(["make", "--silent", "help"], cwd=ROOT, text=True)
    listed = {line.split()[0] for line in shown.splitlines() if line and not line.startswith("make")}
    people = "help install quickstart test test-fast lint catalogue scores bench clean"
    assert set(people.split()) <= listed
