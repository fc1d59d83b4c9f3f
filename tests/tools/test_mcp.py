"""Tools of real MCP servers in an environment, and environments as real MCP servers; all over stdio subprocesses."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest

import envgym
from envgym import TextEnv
from envgym.cli import main
from envgym.errors import MissingDependencyError, UnknownIdError
from envgym.tools import ToolEnv, ToolResult, format_call, tool

pytest.importorskip("mcp", reason="MCP tests need the mcp package: pip install 'envgym[mcp]'")

from envgym.cli.tool_server import ToolServer
from envgym.tools.mcp import McpConnection, McpServerError, attach_mcp

SERVER = '''
import asyncio, os, sys, time
from typing import Literal
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("box")
words = []

@server.tool()
def add(left: int, right: int = 1) -> str:
    """Adds two
    numbers."""
    return str(left + right)

@server.tool()
def remember(word: str, kind: Literal["a", "b"] = "a") -> str:
    words.append(word)
    return " ".join(words)

@server.tool()
def fail() -> str:
    raise ToolError("the shelf is empty")

@server.tool()
async def doze(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"

@server.tool()
async def hang() -> str:
    time.sleep(60)

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool(name="to-day")
def today() -> str:
    return os.environ.get("DAY", "?")

server.run()
'''


class Desk(ToolEnv):
    """A desk with a bell."""

    max_turns = 20

    def reset(self, *, seed=None, options=None):
        TextEnv.reset(self, seed=seed)
        return "ready", {}

    @tool
    def ring(self) -> ToolResult:
        """Rings."""
        return ToolResult("ding", {"bell": 0.5}, terminal=True, success=True)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = tmp_path_factory.mktemp("server") / "box.py"
    script.write_text(SERVER)
    return [sys.executable, str(script)]


@pytest.fixture(scope="module")
def shared(command: list[str]):
    with McpConnection(command=command) as connection:
        yield connection


def call(name: str, call_format: str = "hermes", **arguments) -> str:
    return format_call(name, arguments, call_format)


@pytest.fixture
def desk(shared: McpConnection) -> Desk:
    env = Desk()
    attach_mcp(env, connection=shared)
    env.reset(seed=0)
    return env


def test_the_tools_stand_beside_the_environments_own_with_the_schemas_of_the_server(desk: Desk) -> None:
    assert list(desk.toolbox) == ["ring", "add", "remember", "fail", "doze", "hang", "die", "to-day"]
    assert [schema["function"]["name"] for schema in desk.tools] == list(desk.toolbox)
    function = desk.tools[1]["function"]
    assert function["description"] == "Adds two numbers."
    assert function["parameters"]["properties"]["left"]["type"] == "integer"
    assert function["parameters"]["required"] == ["left"]
    assert list(Desk.toolbox) == ["ring"] and len(Desk.tools) == 1, "the class is as it was"


def test_results_are_observations_and_own_tools_still_work(desk: Desk) -> None:
    step = desk.step(call("add", left=2, right=3) + call("add", left=2))
    assert (step.observation, step.reward, step.info["role"]) == ("5\n3", 0.0, "tool")
    last = desk.step(call("ring"))
    assert last.terminated and last.info["reward_components"] == {"bell": 0.5}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"left": "2"}, "argument 'left': '2' is not of type 'integer'"),
        ({}, "'left' is a required property"),
        ({"word": 1}, "argument 'word': 1 is not of type 'string'"),
        ({"word": "x", "kind": "c"}, "'c' is not one of ['a', 'b']"),
        ({"word": "\ud800"}, "not valid JSON text"),
        ({"word": ["x" * 1000]}, "..."),
    ],
)
def test_wrong_arguments_never_reach_the_server_and_cost_the_penalty(desk: Desk, arguments, complaint) -> None:
    step = desk.step(call("remember" if "word" in arguments else "add", **arguments))
    assert complaint in step.observation and len(step.observation) < 300
    assert step.info["reward_components"] == {"malformed": -0.05}
    assert step.info["action_error"] == step.observation


def test_hostile_numbers_and_depths_are_mistakes_too(desk: Desk) -> None:
    for value in ("1e999", "[" * 3000 + "]" * 3000):
        action = f'<tool_call>{{"name": "doze", "arguments": {{"seconds": {value}}}}}</tool_call>'
        assert desk.step(action).info["reward_components"] == {"malformed": -0.05}


def test_an_error_of_a_tool_is_an_observation(desk: Desk) -> None:
    step = desk.step(call("fail"))
    assert "the shelf is empty" in step.observation and step.info["action_error"] == step.observation
    assert step.reward == 0.0 and not step.terminated
    assert desk.step(call("add", left=1)).observation == "2"


def test_a_slow_call_is_cut_with_an_observation_while_the_server_is_well(shared: McpConnection) -> None:
    env = Desk()
    attach_mcp(env, connection=shared, timeout_s=0.3)
    env.reset(seed=0)
    step = env.step(call("doze", seconds=5))
    assert step.observation == step.info["action_error"] == "doze took longer than 0.3 s."
    assert env.step(call("add", left=1)).observation == "2"


@pytest.mark.slow
def test_a_server_that_dies_is_a_failure_of_the_episode_and_back_at_the_next_reset(command: list[str]) -> None:
    env = Desk()
    attach_mcp(env, command=command)
    trajectory = envgym.run_episode(env, lambda observation: call("die"))
    assert trajectory.failure is not None and "McpServerError" in trajectory.failure and not trajectory.turns
    with pytest.raises(McpServerError, match="closed"):
        env.step(call("add", left=1))
    env.reset(seed=1)
    assert env.step(call("add", left=1)).observation == "2"
    env.close()


@pytest.mark.slow
def test_a_server_that_hangs_is_a_failure_too(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.tools.mcp.GRACE_S", 0.5)
    env = Desk()
    link = attach_mcp(env, command=command, only=["hang"])
    attach_mcp(env, connection=link, only=["hang"], prefix="slow_", timeout_s=0.2)
    env.reset(seed=0)
    with pytest.raises(McpServerError, match="failed"):
        env.step(call("slow_hang"))
    assert not link.is_alive
    env.close()


@pytest.mark.slow
def test_fresh_forgets_between_episodes_and_closing_the_environment_ends_the_server(command: list[str]) -> None:
    kept, fresh = Desk(), Desk()
    links = [attach_mcp(kept, command=command), attach_mcp(fresh, command=command, fresh=True)]
    seen = []
    for env in (kept, fresh):
        for word in ("one", "two"):
            env.reset(seed=0)
            seen.append(env.step(call("remember", word=word)).observation)
    assert seen == ["one", "one two", "one", "two"]
    kept.close()
    fresh.close()
    kept.close()
    assert [link.is_alive for link in links] == [False, False]
    assert not [thread for thread in threading.enumerate() if thread in [link._thread for link in links]]


@pytest.mark.slow
def test_names_rewards_formats_and_environment_variables(command: list[str], shared: McpConnection) -> None:
    def paid(name, arguments, answer):
        return ToolResult(answer, {"sum": 0.25}, terminal=answer == "7")

    env = Desk(call_format="function")
    attach_mcp(env, connection=shared, only=["add"], prefix="box_", result_of=paid)
    env.reset(seed=0)
    assert list(env.toolbox) == ["ring", "box_add"]
    step = env.step("box_add(3, right=4)")
    assert (step.observation, step.info["reward_components"], step.terminated) == ("7", {"sum": 0.25}, True)
    assert "takes 2 arguments, got 3" in env.step("box_add(1, 2, 3)").observation
    assert "'left' is given twice" in env.step("box_add(1, left=2)").observation
    other = Desk()
    attach_mcp(other, command=command, only=["to-day"], environment={"DAY": "monday"})
    other.reset(seed=0)
    assert other.step(call("to-day")).observation == "monday"
    other.close()


def test_what_does_not_fit_is_refused(shared: McpConnection, command: list[str]) -> None:
    env = Desk()
    attach_mcp(env, connection=shared, only=["add"])
    for arguments, message in (
        ({"connection": shared}, "a tool 'add' already"),
        ({"connection": shared, "only": ["sub"]}, "no tool 'sub'; it has add, "),
        ({"connection": shared, "fresh": True}, "fresh"),
        ({"connection": shared, "url": "http://x"}, "give one of"),
        ({}, "and not both"),
        ({"command": "python x.py"}, "a list"),
        ({"command": command, "timeout_s": 0}, "positive"),
    ):
        with pytest.raises(ValueError, match=message):
            attach_mcp(env, **arguments)
    with pytest.raises(ValueError, match="cannot call 'to-day'; use call_format='hermes'"):
        attach_mcp(Desk(call_format="function"), connection=shared)
    with pytest.raises(ValueError, match="HigherLower is none"):
        attach_mcp(envgym.make("envgym/HigherLower-v0"), connection=shared)
    assert list(env.toolbox) == ["ring", "add"]


@pytest.mark.parametrize("program", [["no-such-program-anywhere"], [sys.executable, "-c", "pass"]])
def test_a_server_that_cannot_be_started_is_named(program: list[str]) -> None:
    with pytest.raises(McpServerError, match=f"the MCP server '{program[0]}.*cannot be used"):
        McpConnection(command=program, timeout_s=20)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'envgym\[mcp\]'"):
        McpConnection(command=["x"])
    with pytest.raises(MissingDependencyError, match="mcp"):
        ToolServer("envgym/PointerChase-v0")


def serving(env_id: str, seed: int) -> list[str]:
    return [str(Path(sys.executable).parent / "envgym"), "serve-tools", env_id, "--seed", str(seed)]


def play(env_id: str, seed: int, turns) -> list:
    """Plays a served episode with the mcp package's client: `turns(instructions, tools)` yields calls, gets results."""
    from mcp import Client, StdioServerParameters

    program, *args = serving(env_id, seed)
    results = []

    async def run() -> None:
        async with Client(StdioServerParameters(command=program, args=args)) as client:
            listed = await client.list_tools()
            player = turns(client.instructions, listed.tools)
            request = next(player)
            while request is not None:
                results.append(await client.call_tool(*request))
                request = player.send(results[-1])

    asyncio.run(asyncio.wait_for(run(), 40))
    return results


def test_an_environment_with_tools_is_served_and_pays_what_it_pays_in_process() -> None:
    env_id, seed = "envgym/PointerChase-v0", 5
    trajectory = envgym.run_episode(envgym.make(env_id, call_format="hermes"), solver(), seed=seed)

    def turns(instructions, tools):
        base = envgym.make(env_id).unwrapped
        assert instructions == f"{base.system_prompt}\n\n{trajectory.turns[0].observation}"
        assert {t.name: t.input_schema for t in tools} == {
            schema["function"]["name"]: schema["function"]["parameters"] for schema in base.tools
        }
        wrong = yield "get", {"name": "k7"}
        assert wrong.is_error and wrong.structured_content["reward"] == -0.05
        unknown = yield "find", {}
        assert unknown.is_error and "Unknown tool 'find'" in unknown.content[0].text
        for turn in trajectory.turns:
            data = json.loads(turn.action.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            yield data["name"], data["arguments"]
        late = yield "get", {"key": "k7"}
        assert late.is_error and "The episode has ended (terminated)" in late.content[0].text
        assert (late.structured_content["reward"], late.structured_content["terminated"]) == (0.0, True)
        yield None

    results = play(env_id, seed, turns)[2:-1]
    contents = [result.structured_content for result in results]
    assert [c["reward"] for c in contents] == [turn.reward for turn in trajectory.turns]
    assert [c["reward_components"] for c in contents] == [turn.reward_components for turn in trajectory.turns]
    assert [r.content[0].text for r in results] == [
        *(turn.observation for turn in trajectory.turns[1:]),
        trajectory.final_observation,
    ]
    assert [c["terminated"] for c in contents] == [False] * (len(contents) - 1) + [True]
    assert contents[-1]["success"] is True and not any(result.is_error for result in results)
    assert contents[-1]["total_reward"] == pytest.approx(trajectory.total_reward - 0.1)


def solver():
    from envgym.agents.registry import make_agent

    return make_agent("solver")


@pytest.mark.slow
def test_an_environment_of_plain_messages_is_served_with_one_tool_and_its_truncation_is_told() -> None:
    def turns(instructions, tools):
        assert [t.name for t in tools] == ["send_message"]
        wrong = yield "send_message", {"txt": "crop"}
        assert wrong.is_error and wrong.structured_content["total_reward"] == 0.0
        for _ in range(48):
            result = yield "send_message", {"text": "rest"}
        assert result.structured_content["truncated"] and result.structured_content["truncation_reason"] == "max_turns"
        late = yield "send_message", {"text": "rest"}
        assert late.is_error and "truncated: max_turns" in late.content[0].text
        yield None

    assert len(play("envgym/Upkeep-v0", 0, turns)) == 50


@pytest.mark.slow
def test_a_served_environment_can_be_attached_to_another() -> None:
    env = Desk()
    attach_mcp(env, command=serving("envgym/Calculator-v0", 1), only=["add"], prefix="calculator_")
    env.reset(seed=0)
    assert env.step(call("calculator_add", left=2, right=3)).observation == "5"
    env.close()


def test_an_environment_that_fails_is_an_error_of_the_server_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = ToolServer("envgym/Calculator-v0")

    def broken(action):
        raise OSError("disk on fire")

    monkeypatch.setattr(episode.env.unwrapped, "step", broken)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the environment failed, OSError: disk on fire"):
            episode.call("add", {"left": 1, "right": 2})
    episode.close()


def test_an_unknown_environment_is_refused(capsys) -> None:
    with pytest.raises(UnknownIdError):
        ToolServer("envgym/Calculater-v0")
    assert main(["serve-tools", "envgym/Calculater-v0"]) == 2
    assert "Did you mean 'envgym/Calculator-v0'?" in capsys.readouterr().err
