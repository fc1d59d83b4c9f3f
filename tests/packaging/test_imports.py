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

GYM = frozenset(
    {"types", "errors", "spaces", "env", "agent", "registry", "agent_registry", "wrappers", "tools", "checking"}
    | {"sandbox", "rendering", "suggestion"}
)
"""The gym. Its units may import each other and nothing else of envgym, and no torch."""

ALLOWED: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "errors": frozenset(),
    "config": frozenset(),
    "model_folder": frozenset({"errors"}),
    "weight_sync": frozenset({"errors", "policies"}),
    "run_folder": frozenset({"config", "errors", "types"}),
    "policies": frozenset({"errors", "model_folder", "rendering", "types", "weight_sync"}),
    "learner": frozenset({"config", "errors", "model_folder", "types", "weight_sync"}),
    "rollout": GYM | {"policies"},
    "evaluation": GYM | {"rollout"},
    "environments": GYM,
    "agents": GYM | {"config", "model_folder", "policies", "run_folder"},
    **dict.fromkeys(GYM - {"types", "errors"}, GYM),
}
"""What a unit (a module or package directly below envgym) may import of envgym besides itself.

Units that are not named here stand above all of these and may import anything, but only `training` imports the learner.
"""


def modules() -> dict[str, Path]:
    """Every module of the installed package by its name, from the source tree."""
    found = {}
    for folder, package in PLACES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


MODULES = modules()


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of every import statement, those inside functions and for type checkers included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in MODULES else str(node.module)), node.lineno


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


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in MODULES.items():
        unit = unit_of(name)
        for target, line in imports_of(path):
            if target != "envgym" and not target.startswith("envgym."):
                continue
            target_unit = unit_of(target)
            if target_unit == unit or (target == "envgym" and unit in ("agents", "environments")):
                continue
            if unit not in ALLOWED:
                permitted = target_unit != "learner" or unit == "training"
            else:
                permitted = target_unit in ALLOWED[unit]
            if not permitted:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_only_training_joins_rollout_and_learner() -> None:
    joining = set()
    for name, path in MODULES.items():
        units = {unit_of(target) for target, _ in imports_of(path) if target.startswith("envgym.")}
        if {"rollout", "learner"} <= units:
            joining.add(unit_of(name))
    assert joining == {"training"}


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
        if unit_of(name) in GYM - {"sandbox"} | {"environments", "config"}:
            found = {target.split(".")[0] for target, _ in imports_of(path)} & heavy
            assert not found, f"{path} imports {found}"


def test_the_rules_name_units_that_exist() -> None:
    units = {unit_of(name) for name in MODULES}
    later = {"sandbox"}
    named = set(ALLOWED) | {unit for allowed in ALLOWED.values() for unit in allowed}
    assert named - later <= units


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_imports(name: str) -> None:
    importlib.import_module(name)
