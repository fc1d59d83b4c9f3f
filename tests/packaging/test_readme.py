"""What the README says can be typed, can be typed."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import gymnasium
import pytest

import envgym
from envgym.cli import main
from envgym.cli.main import parser
from envgym.training import recipes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in FENCED if language == "python"]
COMMANDS = [
    line.partition("#")[0].strip()
    for language, text in FENCED
    for line in text.replace("\\\n", " ").splitlines()
    if not language and line.startswith("envgym ")
]
SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("box")
@server.tool()
def add(left: int, right: int) -> str:
    return str(left + right)
server.run()
"""


def short_quickstart(run_dir, *, seed=0):
    config = QUICKSTART(run_dir, seed=seed)
    rollout = config.rollout.model_copy(update={"episodes_per_iteration": 8})
    warm_start = config.warm_start.model_copy(update={"num_episodes": 16})
    evaluation = config.evaluation.model_copy(update={"episodes": 4})
    changes = {"num_iterations": 1, "rollout": rollout, "warm_start": warm_start, "evaluation": evaluation}
    return config.model_copy(update=changes)


QUICKSTART = recipes.quickstart


@pytest.fixture
def a_folder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "quickstart", short_quickstart)
    python = f'"{sys.executable}"'
    (tmp_path / "my_server.py").write_text(SERVER)
    yield python
    for name in ("Doubling", "Lookup"):
        gymnasium.registry.pop(f"mine/{name}-v0", None)


@pytest.mark.slow
def test_the_python_of_the_readme_runs_from_top_to_bottom(a_folder_of_ones_own, capfd):
    # Not capsys: the MCP server inherits standard error as a file.
    assert len(PYTHON) >= 6
    namespace: dict[str, object] = {"__name__": "readme"}
    sys.modules["readme"] = type(sys)("readme")
    try:
        for block in PYTHON:
            block = block.replace('"python", "my_server.py"', f'{a_folder_of_ones_own}, "my_server.py"')
            exec(compile(block, "README.md", "exec"), namespace)
    finally:
        del sys.modules["readme"]
    shown = capfd.readouterr().out
    assert "mine/Doubling-v0: 19 of 19 checks passed" in shown and "actions in error" in shown
    tools = [schema["function"]["name"] for schema in namespace["env"].unwrapped.tools]
    assert tools == ["find", "add"]
    namespace["env"].close()
    assert asyncio.iscoroutinefunction(namespace["agent"])
    solved = envgym.run_episode("mine/Doubling-v0", envgym_agent("solver"), seed=3)
    assert (solved.success, solved.total_reward, len(solved.turns)) == (True, 3.0, 3)
    played = envgym.evaluate("demonstrator", "mine/Doubling-v0", episodes=50)["mine/Doubling-v0"]
    assert 0.5 < played.success < 1 and played.endings["max_turns"] > 0


def envgym_agent(name):
    from envgym.agents.registry import make_agent

    return make_agent(name)


@pytest.mark.slow
def test_an_environment_in_a_module_of_ones_own_works_as_the_readme_says(a_folder_of_ones_own, tmp_path, capsys):
    doubling = next(block for block in PYTHON if "class Doubling" in block)
    (tmp_path / "games.py").write_text(doubling.rpartition("print(")[0])
    named = [command for command in COMMANDS if "games:" in command]
    assert {command.split()[1] for command in named} == {"check", "eval", "play", "train"}
    for command in named:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "play":
            arguments += ["--agent", "solver"]
        if arguments[0] == "train":
            small = {"warm_start.num_episodes": 16, "rollout.episodes_per_iteration": 8, "evaluation.episodes": 4}
            arguments += [part for name, value in small.items() for part in ("--set", f"{name}={value}")]
            arguments += ["--set", "num_iterations=1"]
        assert main(arguments) == 0, command
    assert "mine/Doubling-v0: 19 of 19 checks passed" in capsys.readouterr().out
    sys.modules.pop("games")


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 15


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_one(command):
    assert callable(parser().parse_args(shlex.split(command)[1:]).run)


def test_each_run_folder_of_the_readme_is_written_once():
    begun = re.findall(r"--run-dir (\S+)|run_dir=\"(\S+?)\"|quickstart\(\"(\S+?)\"", README)
    folders = ["".join(found) for found in begun]
    assert len(folders) >= 4 and len(set(folders)) == len(folders)


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
