"""Tool environments run calls in order, reward each, and answer mistakes without executing them."""

import pytest

from envgym.tools import ToolEnv, ToolError, ToolResult, format_call, tool


class Counter(ToolEnv):
    """A counter that can be moved, read and finished."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.log = []
        return "go", {}

    def step_info(self):
        return {"success": False}

    @tool
    def add(self, number: int, label: str = "") -> ToolResult:
        """Adds a number."""
        self.log.append((number, label))
        self.count += number
        return ToolResult(str(self.count), {"progress": 0.1 * number})

    @tool
    def read(self) -> int:
        """Reads the counter."""
        self.log.append("read")
        return self.count

    @tool
    def finish(self) -> ToolResult:
        self.log.append("finish")
        return ToolResult("bye", 1.0, terminal=True, success=self.count > 0, info={"count": self.count})

    @tool
    def refuse(self) -> str:
        raise ToolError("not now")

    @tool
    def crash(self) -> str:
        return str(1 // 0)


class SubCounter(Counter):
    """Overrides one tool and adds another."""

    @tool
    def read(self, digits: int) -> str:
        return f"{self.count:0{digits}d}"

    @tool
    def extra(self) -> None:
        return None


@pytest.fixture
def env():
    env = Counter(call_format="function")
    env.reset(seed=0)
    return env


def test_a_call_is_answered_with_its_reward(env):
    step = env.step("add(2)")
    assert step.observation == "2" and step.reward == pytest.approx(0.2)
    assert step.info == {"success": False, "reward_components": {"progress": pytest.approx(0.2)}, "role": "tool"}


def test_several_calls_run_in_order_and_their_rewards_add_up(env):
    step = env.step("add(1)\nadd(2, x)\nread()")
    assert env.log == [(1, ""), (2, "x"), "read"]
    assert step.observation == "1\n3\n3"
    assert step.info["reward_components"] == pytest.approx({"progress": 0.3, "read": 0.0})


def test_a_terminal_call_ends_the_episode_and_the_rest_is_not_run(env):
    step = env.step("add(1)\nfinish()\nadd(5)")
    assert step.terminated and step.info["success"] is True and step.info["count"] == 1
    assert env.log == [(1, ""), "finish"]
    assert step.info["reward_components"] == pytest.approx({"progress": 0.1, "finish": 1.0})


@pytest.mark.parametrize(
    ("action", "message", "role"),
    [
        ("", "No call. Expected add(number, label) or read() or finish() or refuse() or crash().", "user"),
        ("please add 1", "Malformed call: write name(argument).", "user"),
        ("add(1", "Malformed call: write name(argument).", "user"),
        ("sub(1)", "Unknown tool 'sub'. Tools: add, read, finish, refuse, crash.", "tool"),
        ("__init__()", "Unknown tool '__init__'. Tools: add, read, finish, refuse, crash.", "tool"),
        ("reset()", "Unknown tool 'reset'. Tools: add, read, finish, refuse, crash.", "tool"),
        ("add()", "add(number, label): 'number' is missing.", "tool"),
        ("add(two)", "add(number, label): 'number' should be a valid integer.", "tool"),
        ("add(1, to=3)", "add(number, label): there is no argument 'to'.", "tool"),
        ("read(1)", "read() takes 0 arguments, got 1.", "tool"),
    ],
)
def test_a_malformed_call_is_told_what_is_wrong_and_not_executed(env, action, message, role):
    step = env.step(action)
    assert step.observation == message == step.info["action_error"]
    assert step.info["reward_components"] == {"malformed": -0.05} and step.reward == -0.05
    assert step.info["role"] == role
    assert env.log == [] and not step.terminated


def test_calls_before_a_malformed_one_count_and_those_after_it_are_not_run(env):
    step = env.step("add(1)\nadd(x)\nadd(7)")
    assert env.log == [(1, "")]
    assert step.observation == "1\nadd(number, label): 'number' should be a valid integer."
    assert step.info["reward_components"] == pytest.approx({"progress": 0.1, "malformed": -0.05})


def test_hermes_calls_with_missing_arguments_are_never_run_with_empty_ones():
    env = Counter()
    env.reset(seed=0)
    step = env.step('<tool_call>{"name": "read"}</tool_call>')
    assert env.log == [] and "malformed" in step.info["reward_components"]
    assert env.step(format_call("read", {}, "hermes")).observation == "0"
    assert "Expected <tool_call>" in env.step("read()").observation


def test_a_tool_error_is_an_answer_without_penalty(env):
    step = env.step("refuse()\nadd(1)")
    assert step.observation == "not now\n1"
    assert step.info["action_error"] == "not now" and "malformed" not in step.info["reward_components"]


def test_a_fault_of_the_tool_propagates(env):
    with pytest.raises(ZeroDivisionError):
        env.step("crash()")


def test_the_penalty_is_configurable_and_falls_once_a_turn():
    env = Counter(call_format="function", malformed_penalty=0.5)
    env.reset(seed=0)
    assert env.step("nonsense\n" * 1000).reward == -0.5
    free = Counter(call_format="function", malformed_penalty=0.0)
    free.reset(seed=0)
    assert free.step("nonsense").reward == 0.0


def test_too_many_calls_are_refused():
    env = Counter(call_format="function", max_calls=2)
    env.reset(seed=0)
    step = env.step("add(1)\nadd(1)\nadd(1)")
    assert env.count == 2 and step.info["action_error"] == "Too many calls: at most 2 in a message."


def test_schemas_are_declared_in_order_and_inherited():
    assert [schema["function"]["name"] for schema in Counter.tools] == ["add", "read", "finish", "refuse", "crash"]
    assert Counter.tools[0]["function"]["parameters"]["required"] == ["number"]
    assert list(SubCounter.toolbox) == ["add", "read", "finish", "refuse", "crash", "extra"]
    assert SubCounter.toolbox["read"].parameters == ("digits",) and Counter.toolbox["read"].parameters == ()


def test_an_overridden_tool_is_the_one_that_runs():
    env = SubCounter(call_format="function")
    env.reset(seed=0)
    assert env.step("read(3)\nextra()").observation == "000\nok"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"call_format": "xml"}, "call_format must be one of hermes, function"),
        ({"malformed_penalty": -1}, "malformed_penalty"),
        ({"malformed_penalty": float("nan")}, "malformed_penalty"),
        ({"max_calls": 0}, "max_calls"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Counter(**arguments)
