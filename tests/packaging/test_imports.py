"""What importing costs, and which way imports point."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {"envgym": "envgym", "environments": "envgym.environments", "agents": "envgym.agents"}
"""Folders of the tree, and the packages they install as."""

LEVELS = (
    {"types", "errors", "config"},
    {"spaces", "model_folder", "weights"},
    {"player", "chat"},
    {"env"},
    {"agent", "rendering"},
    {"wrappers", "tools"},
    {"registry"},
    {"vector", "checking", "sandbox"},
    {"engines", "learner"},
    {"agents", "rollout", "environments"},
    {"evaluation"},
    {"training"},
    {"cli"},
)
"""The rooms: modules and packages directly below envgym. Each imports only what stands above it in this list, which
rules circles out."""

GYM = {
    "spaces",
    "player",
    "env",
    "agent",
    "rendering",
    "wrappers",
    "tools",
    "registry",
    "vector",
    "checking",
    "sandbox",
}
NEVER = {
    "learner": GYM | {"agents"},
    "engines": GYM | {"learner"},
    "rollout": {"engines", "learner", "config"},
    "environments": {"engines", "learner", "rollout", "config", "weights", "model_folder"},
}
"""What a room must not know although it stands above: only `training` wires environments, engines and learner."""

NO_TORCH = GYM - {"sandbox"} | {"types", "errors", "config", "chat", "environments"}
MOST_ROOMS, MOST_ARROWS = 25, 110


def modules() -> dict[str, Path]:
    """Every module of the installed package by its name, from the source tree."""
    found = {}
    for folder, package in PLACES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


MODULES = modules()


def imports_of(path: Path, *, running: bool = False) -> Iterator[tuple[str, int]]:
    """(module, line) of every import statement, those inside functions included.

    Args:
        path: A file.
        running: Without those that only type checkers read.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if running:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and _is_for_types(node.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in MODULES else str(node.module)), node.lineno


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def unit_of(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def test_importing_envgym_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import json, sys, time\n"
        "start = time.process_time()\n"
        "import gymnasium\n"
        "between = time.process_time()\n"
        "import envgym\n"
        "end = time.process_time()\n"
        "print(json.dumps([between - start, end - start, list(sys.modules)]))\n"
    )
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", program], text=True)) for _ in range(5)]
    assert {"torch", "transformers", "docker", "sglang", "envgym.environments"}.isdisjoint(runs[0][2])
    # Processor time: what else the machine does must not decide this. Most of it is Gymnasium and NumPy, which say how
    # fast the machine is: where they take a fifth of a second, all of it takes less than three tenths.
    gymnasium, whole = (min(run[part] for run in runs) for part in (0, 1))
    allowed = 0.3 * max(gymnasium / 0.2, 1.0)
    assert whole < allowed, (
        f"importing envgym took {whole:.2f} s of processor time, {gymnasium:.2f} of it for Gymnasium"
    )


def arrows() -> dict[tuple[str, str], str]:
    """(importing room, imported room) and one place where that happens; the package's own `__init__` is no room."""
    found: dict[tuple[str, str], str] = {}
    for name, path in MODULES.items():
        room = unit_of(name)
        for target, line in imports_of(path):
            other = unit_of(target)
            if room and other and target.startswith("envgym.") and other != room:
                found.setdefault((room, other), f"{path.relative_to(ROOT)}:{line}")
    return found


def test_imports_point_one_way() -> None:
    level = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
    wrong = [
        f"{place}: {room} imports {other}"
        for (room, other), place in arrows().items()
        if level[other] >= level[room] or other in NEVER.get(room, ())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_house_stays_small() -> None:
    rooms = {unit_of(name) for name in MODULES} - {""}
    assert rooms <= set().union(*LEVELS)
    assert len(rooms) <= MOST_ROOMS
    assert len(arrows()) <= MOST_ARROWS


def test_modules_of_a_room_import_each_other_without_a_circle() -> None:
    inside = {
        name: {target for target, _ in imports_of(path, running=True) if target in MODULES and target != name}
        for name, path in MODULES.items()
        # An environment makes its players and they act in it: these name each other.
        if path.name != "__init__.py" and unit_of(name) != "environments"
    }
    while free := [name for name, targets in inside.items() if not targets & inside.keys()]:
        for name in free:
            del inside[name]
    assert not inside, f"in a circle, or behind one: {sorted(inside)}"


def test_an_environment_imports_no_other_environment() -> None:
    for name, path in MODULES.items():
        if name.count(".") < 2 or unit_of(name) != "environments":
            continue
        own = ".".join(name.split(".")[:3])
        for target, line in imports_of(path):
            if target.startswith("envgym.environments"):
                assert f"{target}.".startswith(f"{own}."), f"{path}:{line} imports {target}"


def test_the_gym_and_the_environments_need_no_torch() -> None:
    heavy = {"torch", "transformers", "sglang", "docker"}
    for name, path in MODULES.items():
        if unit_of(name) in NO_TORCH:
            found = {target.split(".")[0] for target, _ in imports_of(path)} & heavy
            assert not found, f"{path} imports {found}"


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_imports(name: str) -> None:
    importlib.import_module(name)
