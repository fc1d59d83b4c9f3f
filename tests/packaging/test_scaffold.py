"""`envgym new`: the package it writes is installed, found, checked and tested as it is; a wrong name is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_wheel import installed, run, wheel  # noqa: F401 - fixtures

from envgym.cli import main
from envgym.cli.scaffold import new_package


@pytest.fixture
def package(tmp_path: Path) -> Path:
    assert main(["new", "word_order2", "--dir", str(tmp_path / "games")]) == 0
    return tmp_path / "games" / "word_order2"


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_every_part_is_written_and_named_after_the_package(package: Path) -> None:
    files = contents(package)
    assert set(files) == {
        "pyproject.toml",
        "README.md",
        ".gitignore",
        "word_order2/__init__.py",
        "word_order2/environment.py",
        "word_order2/players.py",
        "tests/test_word_order2.py",
    }
    assert not [path for path, text in files.items() if "$" in text or "my_env" in text]
    assert 'name = "word-order2"' in files["pyproject.toml"]
    assert 'word_order2 = "word_order2:register_environments"' in files["pyproject.toml"]
    assert "`word_order2/WordOrder2-v0`: say the words" in files["README.md"]


def test_what_is_written_is_clean(package: Path) -> None:
    for command in (["check", "."], ["format", "--check", "."]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache"], cwd=package, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_the_package_is_built_installed_and_used(
    package: Path,
    installed: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", package, cwd=package)
    (built,) = (tmp_path / "dist").glob("word_order2-*.whl")
    run(sys.executable, "-m", "pip", "--python", installed, "install", "--no-deps", "--no-index", built, cwd=tmp_path)
    command = installed.parent / "envgym"
    assert "word_order2/WordOrder2-v0  " in run(command, "list", cwd=tmp_path)
    assert run(command, "check", "word_order2/WordOrder2-v0", cwd=tmp_path).endswith("19 of 19 checks passed\n")
    page = run(command, "info", "word_order2/WordOrder2-v0", cwd=tmp_path)
    assert "players: solver, demonstrator, random" in page and "terminated, solved, return +1.00" in page
    program = (
        "import envgym, word_order2\n"
        "env = envgym.make('word_order2/WordOrder2-v0', words=3)\n"
        "assert len(env.reset(seed=0)[0].split()) == 3\n"
        "print(envgym.__file__, word_order2.__file__, sep='\\n')\n"
    )
    for path in run(installed, "-c", program, cwd=tmp_path).splitlines():
        assert Path(path).is_relative_to(installed.parents[1]), path
    tests = run(installed, "-m", "pytest", "-p", "no:cacheprovider", package / "tests", cwd=tmp_path)
    assert " passed" in tests and "failed" not in tests


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MyEnv", "Did you mean 'my_env'?"),
        ("my-env", "Did you mean 'my_env'?"),
        ("my env/", "Did you mean 'my_env'?"),
        ("my__env", "Did you mean 'my_env'?"),
        ("2048", "begin with a letter"),
        ("../up", "Did you mean 'up'?"),
        ("", "'' cannot name a package"),
        ("größe", "lower-case letters"),
        ("class", "a word of the Python language"),
        ("json", "would hide"),
        ("envgym", "would hide"),
        ("numpy", "installed already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, message: str, tmp_path: Path, capsys) -> None:
    assert main(["new", name, "--dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(package: Path, capsys) -> None:
    (package / "README.md").write_text("mine")
    (package / "word_order2" / "players.py").unlink()
    before = contents(package)
    assert main(["new", "word_order2", "--dir", str(package.parent)]) == 2
    assert "exists already and is left as it is" in capsys.readouterr().err
    assert contents(package) == before


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file' is not a folder; choose another --dir"):
        new_package("my_env", tmp_path / "file" / "deeper")
