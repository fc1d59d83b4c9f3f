"""`docs/environments.md` is what the registry, `catalogue.toml` and `scores.json` say, whatever is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import envgym
from envgym import TruncationReason
from envgym.cli import catalogue
from envgym.cli.catalogue import PAGE, SCORES, main, measure, page
from envgym.errors import MissingDependencyError

ROOT = Path(__file__).parents[2]
BUILTIN = envgym.list_environments("builtin")
RECORDED = json.loads((ROOT / SCORES).read_text())
BLOCKED = ("reasoning_gym", "textworld", "textarena", "tau2", "bfcl_eval", "mcp", "torch", "jericho")


def test_the_committed_page_is_current_also_where_no_optional_package_is_installed() -> None:
    program = (
        "import sys\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        "from envgym.cli.catalogue import main\n"
        f"sys.exit(main(['--root', {str(ROOT)!r}, '--check']))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_every_environment_is_described_and_measured_and_nothing_else_is() -> None:
    described = tomllib.loads((ROOT / "environments" / "catalogue.toml").read_text())
    names = [f"envgym/{name}-v0" for folder in described.values() for name in folder["tasks"]]
    assert sorted(names) == sorted(RECORDED) == BUILTIN
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {folder["extra"] for folder in described.values() if "extra" in folder} <= set(extras)
    for name, folder in described.items():
        assert (ROOT / "environments" / name / "README.md").is_file()
        assert set(folder.get("episodes", {})) <= set(folder["tasks"]) and folder["ends"]


@pytest.mark.parametrize("env_id", BUILTIN)
def test_the_recorded_limit_is_that_of_the_environment(env_id: str) -> None:
    try:
        env = envgym.make(env_id)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    recorded = RECORDED[env_id]
    assert env.get_wrapper_attr("max_turns") == recorded["max_turns"]
    ends = TruncationReason.MAX_TURNS in env.get_wrapper_attr("terminal_limits")
    assert ends == recorded["limit_terminates"]
    env.close()


def test_what_is_recorded_is_what_the_players_reach() -> None:
    assert measure("envgym/HigherLower-v0") == RECORDED["envgym/HigherLower-v0"]
    assert measure("envgym/Upkeep-v0")["players"]["solver"]["success"] is None


def test_a_row_has_a_cell_for_each_column_and_no_number_in_two_meanings() -> None:
    scores = RECORDED | {
        "envgym/Wordle-v0": {
            "max_turns": 24,
            "limit_terminates": True,
            "episodes": 7,
            "players": {
                "random": {"success": None, "reward": -0.25, "turns": 24.0},
                "solver": {"success": 1.0, "reward": 1.7, "turns": 3.24},
            },
        }
    }
    rows = [line for line in page(scores).splitlines() if "Wordle-v0`" in line]
    assert rows == [
        "| [`envgym/Wordle-v0`](../environments/wordle/README.md) "
        "| find a five-letter word with six guesses | – | – | – |",
        "| `envgym/Wordle-v0` | the word, or the last wrong guess | 24, ends it | -0.25 | – | 1.00 / 1.70 | 3.2 | 7 |",
    ]
    tables = [line.count(" | ") for line in page(RECORDED).splitlines() if line.startswith("| ")]
    assert tables == [4] * (len(BUILTIN) + 1) + [7] * (len(BUILTIN) + 1)


def test_a_page_that_is_missing_or_outdated_fails_the_check_and_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "environments").mkdir()
    root = ["--root", str(tmp_path)]
    (tmp_path / SCORES).write_text(json.dumps(RECORDED))
    assert main([*root, "--check"]) == 1
    assert "run `make catalogue`" in capsys.readouterr().err
    assert main(root) == 0 and main([*root, "--check"]) == 0
    monkeypatch.setattr(catalogue, "EPISODES", 3)
    assert main([*root, "--measure", "envgym/HigherLower-v0"]) == 0
    changed = json.loads((tmp_path / SCORES).read_text())
    assert changed["envgym/HigherLower-v0"]["episodes"] == 3
    assert (tmp_path / PAGE).read_text() == page(changed) != page(RECORDED)


def test_the_pages_that_introduce_the_environments_link_to_the_catalogue() -> None:
    assert "(../docs/environments.md)" in (ROOT / "environments" / "README.md").read_text()
    assert "(docs/environments.md)" in (ROOT / "README.md").read_text()
