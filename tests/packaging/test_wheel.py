"""The wheel: what is in it, and that it works where the source tree is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLACES = {"envgym": "envgym", "environments": "envgym/environments", "agents": "envgym/agents"}
"""Folders of the tree, and where they lie in the wheel."""


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that sees neither the source tree nor the caller's Python settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def files_in(folder: Path) -> list[Path]:
    return [p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for folder in (*PLACES, "tests", "examples"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tree / "dist", tree, cwd=tree)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that has the wheel, and the dependencies of this environment.

    A .pth file inside a folder that a .pth file names is not read: an editable installation here stays invisible there.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: Path) -> None:
    expected = {f"{place}/{path.as_posix()}" for folder, place in PLACES.items() for path in files_in(ROOT / folder)}
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert packed == expected, "add new packages to [tool.setuptools] in pyproject.toml, new data to package-data"
    assert {"envgym/py.typed", "envgym/environments/pointer_chase/README.md"} <= packed


def test_metadata_names_the_licence_and_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Name"] == "envgym"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert {"train", "renderers", "dev"} <= set(metadata.get_all("Provides-Extra") or ())
    assert not any(r.startswith("torch") and "extra ==" not in r for r in metadata.get_all("Requires-Dist") or ())
    assert "envgym = envgym.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert archive.read(f"{info}/top_level.txt").decode().split() == ["envgym"]


def test_the_installed_package_plays_an_environment(installed: Path, tmp_path: Path) -> None:
    program = (
        "import envgym, envgym.agents, envgym.environments\n"
        "observation, info = envgym.make('envgym/PointerChase-v0').reset(seed=0)\n"
        "assert observation\n"
        "print(envgym.__file__, envgym.agents.__file__, envgym.environments.__file__, sep='\\n')\n"
    )
    for path in run(installed, "-c", program, cwd=tmp_path).splitlines():
        assert Path(path).is_relative_to(installed.parents[1]), path


def test_the_installed_command_lists_the_environments(installed: Path, tmp_path: Path) -> None:
    listed = run(installed.parent / "envgym", "list", cwd=tmp_path)
    for name in ("HigherLower", "PointerChase", "Upkeep"):
        assert f"envgym/{name}-v0" in listed
