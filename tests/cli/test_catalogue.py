"""`docs/environments.md` is what the registry and the READMEs say, with or without the optional packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import envgym
from envgym.cli.catalogue import CATALOGUE, catalogue, entry_of, main
from envgym.cli.readme import Readme

ROOT = Path(__file__).parents[2]
BLOCKED = ("reasoning_gym", "textworld", "textarena", "tau2", "bfcl_eval", "mcp", "torch", "jericho")


@pytest.fixture(scope="module")
def extras() -> list[str]:
    return list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_the_committed_catalogue_is_current() -> None:
    assert main(["--root", str(ROOT), "--check"]) == 0, "run `make catalogue`"


def test_it_is_the_same_where_no_optional_package_is_installed() -> None:
    program = (
        "import sys\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        "from envgym.cli.catalogue import main\n"
        f"sys.exit(main(['--root', {str(ROOT)!r}, '--check']))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_environment_has_a_row_in_both_tables_and_a_readme_that_exists(extras: list[str]) -> None:
    lines = catalogue(ROOT).splitlines()
    for env_id in envgym.list_environments("builtin"):
        entry = entry_of(envgym.spec(env_id), extras)
        assert sum(f"`{env_id}`" in line.split("|")[1] for line in lines if line.startswith("|")) == 2, env_id
        assert entry.readme is None or (ROOT / entry.readme).is_file(), env_id


def test_a_row_is_what_registry_class_and_readme_say(extras: list[str]) -> None:
    entry = entry_of(envgym.spec("envgym/PointerChase-v0"), extras)
    assert entry.task == "follow a chain of records with two tools, then answer the value at its end"
    assert (entry.tools, entry.horizon, entry.data, entry.extra) == ("yes", "at most 8 turns", "–", "–")
    assert entry.endings == "An answer terminates, right or wrong; truncated after 8 turns"
    assert (entry.random, entry.solver) == ("0.01 / -0.01 (success / reward)", "1.00 / 1.30 (success / reward)")
    bridge = entry_of(envgym.spec("envgym/ReasoningGym-v0"), extras)
    assert (bridge.extra, bridge.data.split(",")[0]) == ("`reasoning-gym`", "Apache-2.0")
    assert entry_of(envgym.spec("envgym/Tau2Retail-v0"), extras).horizon == "at most 50 turns"
    assert entry_of(envgym.spec("envgym/Taxi-v0"), extras).random == "0.05 / -774 (success / reward)"


def test_an_environment_that_cannot_be_imported_is_described_by_its_readme_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extras: list[str]
) -> None:
    (tmp_path / "needy").mkdir()
    (tmp_path / "needy" / "__init__.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "needy" / "README.md").write_text(
        "`needy/Need-v0`: ask | beg. More.\n\nInstall `envgym[tau2]`.\n\n**Ending** After 7 turns it is truncated.\n\n"
        "**Data** Under CC BY 4.0.\n\n| player | reward |\n|---|---|\n| random | 3 |\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = envgym.spec("envgym/HigherLower-v0")
    monkeypatch.setattr(spec, "entry_point", "needy:Need")
    monkeypatch.setattr(spec, "id", "needy/Need-v0")
    entry = entry_of(spec, extras)
    assert (entry.task, entry.horizon, entry.data, entry.extra) == (
        "ask | beg",
        "at most 7 turns",
        "CC BY 4.0",
        "`tau2`",
    )
    assert (entry.endings, entry.random, entry.solver) == (
        "After 7 turns it is truncated; truncated after 7 turns",
        "3 (reward)",
        "–",
    )


def test_an_outdated_or_missing_file_fails_the_check_and_is_written_anew(tmp_path: Path, capsys) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert "run `make catalogue`" in capsys.readouterr().err
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0
    path = tmp_path / CATALOGUE
    path.write_text(path.read_text().replace("PointerChase", "PointerChaise"))
    assert main(["--root", str(tmp_path), "--check"]) == 1


def test_the_pages_that_introduce_the_environments_link_to_the_catalogue() -> None:
    assert "(../docs/environments.md)" in (ROOT / "environments" / "README.md").read_text()
    assert "(docs/environments.md)" in (ROOT / "README.md").read_text()


def test_rows_named_by_their_id_are_found_too() -> None:
    readme = Readme("| id | task | random | solver, success |\n|---|---|---|---|\n| `a/B-v0` | Win. | 0.1 | 1.0 |\n")
    assert (readme.task("a/B-v0"), readme.score("a/B-v0", "random"), readme.score("a/B-v0", "solver")) == (
        "Win",
        "0.1",
        "1.0 (solver, success)",
    )
