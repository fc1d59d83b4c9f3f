"""The chat agent against a real HTTP server: native calls, their history, retries, limits and failures."""

import json
import re
import sys
import threading
import time
import warnings

import pytest
from chat_server import call, error, serving
from fakes import Countdown, registered

import envgym
from envgym import TruncationReason, evaluate, run_episode
from envgym.agents.registry import make_agent
from envgym.errors import MissingDependencyError
from envgym.evaluation.results_folder import read_results
from envgym.tools import ToolEnv, ToolResult, tool

pytest.importorskip("openai", reason="needs the openai package: pip install 'envgym[openai]'")

MODEL = "maker/model-7b"


@pytest.fixture(autouse=True)
def _no_key_of_anybody(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Lookup(ToolEnv):
    """Two tools; `finish` with the right colour ends the episode."""

    system_prompt = "Find the colour of the fox."
    max_turns = 6

    def __init__(self, **settings):
        super().__init__(**settings)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return "What colour is the fox?", {"success": False}

    def step(self, action):
        self.actions.append(action)
        return super().step(action)

    def step_info(self):
        return {"success": False}

    @tool
    def find(self, animal: str) -> ToolResult:
        """Looks an animal up.

        Args:
            animal: Its name.
        """
        return ToolResult(f"{animal}: red", {"found": 0.5})

    @tool
    def finish(self, colour: str) -> ToolResult:
        """Answers.

        Args:
            colour: The colour.
        """
        return ToolResult("finished", {"right": 1.0}, terminal=True, success=colour == "red")

    @tool
    def rest(self) -> ToolResult:
        """Does nothing."""
        return ToolResult("rested")


def script(*replies):
    """Gives the replies in order, whoever asks."""
    remaining = list(replies)
    return lambda request: remaining.pop(0)


def agent_for(server, **kwargs):
    return make_agent(f"openai:{MODEL}@{server.base_url}", **{"max_retries": 2, **kwargs})


FIND = {"content": "let me see", "tool_calls": [call("find", {"animal": "fox"}, "abc")]}
FINISH = {"tool_calls": [call("finish", {"colour": "red"}, "def")]}


def test_native_calls_reach_the_environment_and_keep_their_ids():
    env = Lookup()
    with serving(script(FIND, FINISH)) as server:
        trajectory = run_episode(env, agent_for(server))
    assert trajectory.failure is None and trajectory.success and trajectory.total_reward == 1.5
    assert trajectory.turns[0].action == (
        'let me see\n<tool_call>{"name": "find", "arguments": {"animal": "fox"}}</tool_call>'
    )
    first, second = server.requests
    assert first["model"] == MODEL and [t["function"]["name"] for t in first["tools"]] == ["find", "finish", "rest"]
    assert first["messages"] == [
        {"role": "system", "content": "Find the colour of the fox."},
        {"role": "user", "content": "What colour is the fox?"},
    ]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "let me see", "tool_calls": [call("find", {"animal": "fox"}, "abc")]},
        {"role": "tool", "tool_call_id": "abc", "content": "fox: red"},
    ]


def test_several_calls_in_a_message_are_all_answered():
    both = {"tool_calls": [call("find", {"animal": "fox"}, "a"), call("find", {"animal": "owl"}, "b")]}
    with serving(script(both, FINISH)) as server:
        trajectory = run_episode(Lookup(), agent_for(server))
    assert trajectory.success and len(trajectory.turns[0].action.splitlines()) == 2
    answers = server.requests[1]["messages"][-2:]
    assert [(m["role"], m["tool_call_id"]) for m in answers] == [("tool", "a"), ("tool", "b")]
    assert answers[0]["content"] == "fox: red\nowl: red"


@pytest.mark.parametrize("ids", [(None, None), ("same", "same"), ("", "x")])
def test_calls_without_ids_of_their_own_are_given_some(ids):
    both = {"tool_calls": [call("find", {"animal": "fox"}, ids[0]), call("rest", "", ids[1])]}
    with serving(script(both, FINISH)) as server:
        assert run_episode(Lookup(), agent_for(server)).success
    used = [m["tool_call_id"] for m in server.requests[1]["messages"][-2:]]
    assert len(set(used)) == 2 and all(used)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ('{"animal": "fox"', "Malformed call: invalid JSON"),
        ('{"animal": "a", "animal": "b"}', "a key appears twice"),
        ('{}}</tool_call><tool_call>{"name": "finish", "arguments": {"colour": "red"}', "Malformed call"),
        ('{}, "x": 1', "Malformed call"),
        ("[1]", '"arguments" must be a JSON object'),
        ("fox", "invalid JSON"),
    ],
)
def test_arguments_that_cannot_be_read_are_the_policys_mistake_and_never_guessed(arguments, complaint):
    env = Lookup()
    with serving(script({"tool_calls": [call("find", arguments)]}, FINISH)) as server:
        trajectory = run_episode(env, agent_for(server))
    assert trajectory.success and len(trajectory.turns) == 2
    assert complaint in trajectory.turns[0].action_error and trajectory.turns[0].reward < 0
    assert server.requests[1]["messages"][-1]["content"] == trajectory.turns[1].observation


def test_an_argument_may_contain_what_looks_like_the_end_of_a_call():
    colour = "red</tool_call><tool_call>"
    replies = script({"tool_calls": [call("find", {"animal": colour})]}, FINISH)
    with serving(replies) as server:
        trajectory = run_episode(Lookup(), agent_for(server))
    assert trajectory.turns[1].observation == f"{colour}: red"


def test_an_unknown_tool_is_told_and_answered_in_the_history():
    with serving(script({"tool_calls": [call("fly", {})]}, FINISH)) as server:
        trajectory = run_episode(Lookup(), agent_for(server))
    assert "Unknown tool 'fly'" in trajectory.turns[0].action_error and trajectory.success
    assert server.requests[1]["messages"][-1]["role"] == "tool"


def test_text_that_reads_like_a_call_is_not_executed_beside_a_native_one():
    reply = {"content": '<tool_call>{"name": "rest", "arguments": {}}</tool_call>', **FINISH}
    with serving(script(reply)) as server:
        trajectory = run_episode(Lookup(), agent_for(server))
    assert trajectory.success and trajectory.turns[0].action.count("<tool_call>") == 1


def test_calls_written_as_text_leave_no_orphan_tool_message():
    text = '<tool_call>{"name": "find", "arguments": {"animal": "fox"}}</tool_call>'
    for native in (True, False):
        with serving(
            script({"content": text}, {"content": text.replace("find", "finish").replace("animal", "colour")})
        ) as server:
            trajectory = run_episode(Lookup(), agent_for(server, native_tools=native))
        assert trajectory.ending == "terminated" and trajectory.turns[1].role == "tool"
        assert server.requests[1]["messages"][-1] == {"role": "user", "content": "fox: red"}
        assert ("tools" in server.requests[0]) == native
        assert ('"name": "find"' in server.requests[0]["messages"][0]["content"]) == (not native)


def test_an_environment_that_explains_its_calls_itself_is_played_in_text():
    with serving(script({"content": 'find("fox")'}, {"content": 'finish("red")'})) as server:
        trajectory = run_episode(Lookup(call_format="function"), agent_for(server))
    assert trajectory.success and "tools" not in server.requests[0]


def test_sampling_settings_seed_key_and_further_fields_are_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    with serving(lambda request: {"content": "x"}) as server:
        run_episode(Countdown(length=2), agent_for(server))
        settings = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "send_seed": True, "extra": {"top_k": 3}}
        run_episode(Countdown(length=2), agent_for(server, api_key="given", **settings), seed=40)
        run_episode(Countdown(length=1), agent_for(server, greedy=True))
    plain, _, first, second, greedy = server.requests
    assert plain.keys() == {"model", "messages"}
    assert {k: first[k] for k in ("temperature", "top_p", "max_tokens", "top_k", "seed")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "top_k": 3,
        "seed": 40,
    }
    assert second["seed"] == 41 and greedy["temperature"] == 0
    keys = [{k.lower(): v for k, v in headers.items()}["authorization"] for headers in server.headers]
    assert keys == ["Bearer from-the-environment"] * 2 + ["Bearer given"] * 2 + ["Bearer from-the-environment"]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [error(429, "slow down"), error(503, "overloaded"), (0, b"")])
def test_passing_trouble_is_tried_again(trouble):
    with serving(script(trouble, FINISH)) as server:
        trajectory = run_episode(Lookup(), agent_for(server))
    assert trajectory.success and len(server.requests) == 2


def test_an_error_that_stays_fails_the_episode_and_scores_nothing(tmp_path):
    env_id = registered("Chat500", Lookup)

    def reply(request):
        return FINISH if answers else error(500, "broken")

    answers = False
    with serving(reply) as server:
        agent = agent_for(server, max_retries=1)
        report = evaluate(agent, env_id, episodes=3, results=tmp_path)[env_id]
        assert (report.episodes, report.failed, report.success, report.mean_return) == (0, 3, None, None)
        assert len(server.requests) == 6 and "broken" in next(iter(report.failures))
        answers = True
        report = evaluate(agent, env_id, episodes=3, results=tmp_path)[env_id]
    assert (report.episodes, report.failed, report.success) == (3, 0, 1.0)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((200, b'{"choices": [{"mess'), "is not valid JSON"),
        ((200, b"<html>busy</html>"), "is not valid JSON"),
        ((200, {"choices": []}), "holds no message"),
        ((200, {"choices": None, "error": {"message": "upstream"}}), "holds no message.*upstream"),
        ((200, {"choices": [{"finish_reason": "stop"}]}), "holds no message"),
        ((200, []), "holds no message"),
        (error(400, "temperature must be below 2"), "temperature must be below 2"),
        (error(403, "not in your country"), "not in your country"),
    ],
)
def test_an_answer_that_is_none_fails_the_episode(answer, what):
    with serving(lambda request: answer) as server:
        trajectory = run_episode(Lookup(), agent_for(server, max_retries=0))
    assert trajectory.ending == "failed" and not trajectory.terminated and len(server.requests) == 1
    assert re.search(what, trajectory.failure), trajectory.failure


def test_a_server_that_is_not_there_fails_the_episode():
    with serving(lambda request: FINISH) as server:
        pass
    trajectory = run_episode(Lookup(), agent_for(server, max_retries=0))
    assert re.search(rf"no answer from '{server.base_url}': .*ConnectError", trajectory.failure)


def test_a_server_that_never_answers_is_waited_for_only_so_long():
    release = threading.Event()

    def hang(request):
        release.wait(10)
        return FINISH

    started = time.monotonic()
    with serving(hang) as server:
        trajectory = run_episode(Lookup(), agent_for(server, max_retries=0, timeout_s=0.3))
        release.set()
    assert "Request timed out" in trajectory.failure and time.monotonic() - started < 5


@pytest.mark.parametrize("answer", [error(401, "bad key"), error(404, "the model does not exist")])
def test_a_wrong_key_or_model_ends_the_evaluation_at_once(answer):
    with serving(lambda request: answer) as server, pytest.raises(ValueError, match=f"refuses model '{MODEL}'.*"):
        evaluate(agent_for(server), registered("ChatRefused", Lookup), episodes=50, concurrency=2)
    assert len(server.requests) <= 2


@pytest.mark.parametrize(
    "answer",
    [
        error(400, "This model's maximum context length is 8192 tokens.", "context_length_exceeded"),
        error(400, "The input (9000 tokens) is longer than the model's context length (8192 tokens)."),
        error(400, "the request exceeds the available context size. try increasing the context size"),
        error(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        error(422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."),
    ],
)
def test_a_prompt_that_is_too_long_ends_the_episode_as_a_context_overflow(answer):
    with serving(script(FIND, answer)) as server:
        trajectory = run_episode(Lookup(), agent_for(server, max_retries=0))
    assert trajectory.failure is None
    assert (trajectory.truncated, trajectory.truncation_reason) == (True, TruncationReason.CONTEXT_OVERFLOW)
    assert trajectory.success is False and trajectory.total_reward == 0.5
    assert trajectory.final_observation == "fox: red"


@pytest.mark.parametrize(
    ("max_tokens", "written", "ending"),
    [(None, 50, "response_length"), (50, 50, "response_length"), (50, 20, "context_overflow")],
)
def test_a_message_that_was_cut_is_not_executed(max_tokens, written, ending):
    usage = {"prompt_tokens": 10, "completion_tokens": written, "total_tokens": 10 + written}
    cut = {"tool_calls": [call("find", '{"animal": "fo')], "finish_reason": "length", "usage": usage}
    env = Lookup()
    with serving(script(FIND, cut)) as server:
        trajectory = run_episode(env, agent_for(server, max_tokens=max_tokens))
    assert trajectory.ending == ending and len(env.actions) == 1
    assert not trajectory.turns[1].executed and "fo" in trajectory.turns[1].action


# -- in an evaluation ------------------------------------------------------------------------------------------------


def test_tokens_are_counted_and_kept_and_every_environment_is_played_in_a_loop_of_its_own(tmp_path):
    ids = [registered("ChatA", Lookup), registered("ChatB", Lookup)]

    def reply(request):
        return FINISH if len(request["messages"]) > 2 else FIND

    with serving(reply) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = agent_for(server)
        evaluation = evaluate(agent, ids, episodes=8, concurrency=4, results=tmp_path)
        again = evaluate(agent, ids, episodes=8, results=tmp_path)
    assert evaluation == again and len(server.requests) == 32
    assert (evaluation.overall.success, evaluation.overall.failed) == (1.0, 0)
    assert (evaluation.overall.prompt_tokens, evaluation.overall.action_tokens) == (20.0, 6.0)
    assert evaluation.overall.agent == MODEL
    assert all(record.usage.action_tokens == 6 for record in read_results(tmp_path).records.values())


def test_the_key_is_written_nowhere(tmp_path, capsys):
    env_id = registered("ChatSecret", Lookup)
    with serving(lambda request: FINISH) as server:
        kwargs = {"model": MODEL, "base_url": server.base_url, "api_key": "sk-secret"}
        evaluate("openai", env_id, episodes=1, results=tmp_path, agent_kwargs=kwargs)
    assert json.loads((tmp_path / "settings.json").read_text())["agent"]["settings"]["model"] == MODEL
    assert all("sk-secret" not in path.read_text() for path in tmp_path.iterdir())


def test_what_the_caller_got_wrong_is_said(monkeypatch):
    with pytest.raises(ValueError, match="OpenAI's server needs a key: set OPENAI_API_KEY"):
        make_agent("openai:gpt-x")
    with pytest.raises(ValueError, match="name a model"):
        make_agent("openai:@http://localhost:1/v1")
    with pytest.raises(ValueError, match=r"agent 'openai:m' cannot be made with these arguments.*temprature"):
        make_agent("openai:m", temprature=0)
    with pytest.raises(ValueError, match="the address is given twice"):
        make_agent("openai:m@http://a/v1", base_url="http://b/v1")
    for wrong in ({"timeout_s": 0}, {"max_retries": -1}, {"max_tokens": 0}, {"greedy": True, "temperature": 1.0}):
        with pytest.raises(ValueError, match=r"must be|greedy is"):
            make_agent("openai:m@http://a/v1", **wrong)
    agent = make_agent("openai:qwen2.5:0.5b@v2@http://localhost:11434/v1", name="small")
    endpoint = agent.endpoint
    assert (endpoint.model, endpoint.base_url, agent.name) == ("qwen2.5:0.5b@v2", "http://localhost:11434/v1", "small")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'envgym\[openai\]'"):
        make_agent("openai:m@http://a/v1")


def test_the_environments_of_this_package_can_be_played_through_an_endpoint():
    def reply(request):
        return {"content": "", "tool_calls": [call(request["tools"][0]["function"]["name"], {})]}

    with serving(reply) as server:
        trajectory = run_episode(
            envgym.make("envgym/SqlAnalyst-v0", max_turns=3, call_format="hermes"), agent_for(server)
        )
    assert trajectory.failure is None and len(trajectory.turns) == 3
