"""The turn limit cuts where it should, and the guard refuses what breaks the contract."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from envgym import Step, TextEnv, TruncationReason
from envgym.errors import ContractError, EnvGymError, EpisodeOrderError, RewardError
from envgym.wrappers import EpisodeGuard, MaxTurns


class Script(TextEnv):
    """Plays back the steps it was given, and remembers the actions."""

    def __init__(self, *steps) -> None:
        self.steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return "start", {}

    def step(self, action):
        self.actions.append(action)
        return self.steps[len(self.actions) - 1]


def run(env, count):
    env.reset(seed=0)
    return [env.step(f"a{i}") for i in range(count)]


RUNNING = Step.running("on", {"x": 0.5}, success=False)


def test_the_action_of_the_last_turn_is_executed_and_rewarded():
    env = MaxTurns(Script(RUNNING, RUNNING._replace(observation="last")), 2)
    first, second = run(env, 2)
    assert env.unwrapped.actions == ["a0", "a1"]
    assert not first.truncated
    assert second.observation == "last" and second.reward == 0.5
    assert (second.terminated, second.truncated) == (False, True)
    assert second.info["truncation_reason"] == "max_turns"
    assert second.info["success"] is False and second.info["reward_components"] == {"x": 0.5}
    assert isinstance(second, Step)


BOTH = Step("x", 0.0, True, True, {"truncation_reason": "environment"})


@pytest.mark.parametrize(
    ("step", "terminal", "ending"),
    [
        (RUNNING, [TruncationReason.MAX_TURNS], (True, False, None)),
        (Step.terminal("won", 1.0, success=True), [], (True, False, None)),
        (Step.truncation("late", reason="time_limit"), [], (False, True, "time_limit")),
        (BOTH, [], (True, True, "environment")),
    ],
    ids=["a limit that belongs to the task", "terminated", "truncated", "both"],
)
def test_the_step_of_the_limit_terminates_for_the_task_and_keeps_an_ending_of_the_environment(step, terminal, ending):
    made = run(MaxTurns(Script(step), 1, terminal), 1)[0]
    assert (made.terminated, made.truncated, made.info.get("truncation_reason")) == ending
    assert ("truncation_reason" in made.info) == (ending[2] is not None)
    assert step is not BOTH or made == BOTH


def test_the_limit_does_not_touch_the_info_of_the_environment():
    run(MaxTurns(Script(RUNNING), 1), 1)
    assert "truncation_reason" not in RUNNING.info


def test_the_count_starts_again_with_every_episode():
    env = MaxTurns(Script(RUNNING, RUNNING, RUNNING), 3)
    run(env, 2)
    assert not run(env, 2)[-1].truncated
    assert run(env, 3)[-1].truncated


def test_without_a_limit_nothing_is_cut():
    assert not any(step.truncated for step in run(MaxTurns(Script(*[RUNNING] * 50)), 50))


def test_tool_turns_and_malformed_turns_count():
    env = MaxTurns(Script(Step.running("r", role="tool"), Step.running("?", action_error="bad")), 2)
    assert run(env, 2)[-1].truncated


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        MaxTurns(Script(), 0)


def test_a_plain_tuple_becomes_a_step():
    step = run(MaxTurns(Script(("x", 1.0, False, False, {})), 5), 1)[0]
    assert isinstance(step, Step) and step.reward == 1.0


def test_a_step_before_reset_is_refused_and_never_reaches_the_environment():
    inner = Script(RUNNING)
    inner.actions = []
    with pytest.raises(EpisodeOrderError, match="Script: step was called before reset"):
        EpisodeGuard(inner).step("x")
    assert inner.actions == []


@pytest.mark.parametrize("end", [Step.terminal("end"), Step.truncation("end")])
def test_a_step_after_the_end_is_refused_until_reset(end):
    env = EpisodeGuard(Script(end))
    run(env, 1)
    with pytest.raises(EpisodeOrderError, match="after the episode had ended; call reset first"):
        env.step("x")
    assert run(env, 1)[0] == end


def test_a_cut_by_the_turn_limit_is_an_end_too():
    env = EpisodeGuard(MaxTurns(Script(RUNNING, RUNNING), 1))
    run(env, 1)
    with pytest.raises(EpisodeOrderError):
        env.step("x")


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_an_error(reward):
    with pytest.raises(RewardError, match="Script: a reward must be a finite number"):
        run(EpisodeGuard(Script(Step("x", reward, False, False, {}))), 1)


@pytest.mark.parametrize(("total", "wrong"), [(0.3 + 2e-6, True), (0.3 + 5e-7, False), (0.3, False), (0.0, True)])
def test_components_sum_to_the_reward_within_a_millionth(total, wrong):
    env = EpisodeGuard(Script(Step("x", total, False, False, {"reward_components": {"a": 0.1, "b": 0.2}})))
    if wrong:
        with pytest.raises(RewardError, match=r"sum to 0\.3.*, but the reward is"):
            run(env, 1)
    else:
        assert run(env, 1)[0].reward == total


def test_a_component_that_is_not_finite_is_an_error():
    step = Step("x", 0.0, False, False, {"reward_components": {"a": float("nan")}})
    with pytest.raises(RewardError, match="sum to nan"):
        run(EpisodeGuard(Script(step)), 1)


# -- types -----------------------------------------------------------------------------------------------------------


def returned(**changes):
    fields = {"observation": "on", "reward": 0.5, "terminated": False, "truncated": False, "info": {}, **changes}
    return tuple(fields.values())


FLAG = r"it must be True or False. A step is \(observation, reward, terminated, truncated, info\)"
WRONG_STEPS = [
    ({"observation": None}, r"the observation is None \(NoneType\); it must be a string"),
    ({"observation": b"on"}, r"the observation is b'on' \(bytes\); it must be a string"),
    ({"observation": ["on"]}, r"the observation is \['on'\] \(list\); it must be a string"),
    ({"observation": "a\ud800"}, r"the observation holds '\\ud800' at character 1, half of a surrogate pair, .* UTF-8"),
    ({"terminated": "False"}, rf"terminated is 'False' \(str\); {FLAG}"),
    ({"terminated": None}, rf"terminated is None \(NoneType\); {FLAG}"),
    ({"truncated": 1.5}, rf"truncated is 1.5 \(float\); {FLAG}"),
    ({"truncated": 0}, rf"truncated is 0 \(int\); {FLAG}"),
    ({"truncated": np.array([False, True])}, rf"truncated is array.* \(ndarray\); {FLAG}"),
    ({"info": None}, r"info is None \(NoneType\); it must be a dict"),
    ({"info": [("role", "user")]}, r"info is .* \(list\); it must be a dict"),
    ({"info": {"role": "system"}}, r"info\['role'\] is 'system' \(str\); it must be 'user' or 'tool'"),
    ({"info": {"role": None}}, r"info\['role'\] is None \(NoneType\); it must be 'user' or 'tool'"),
    ({"info": {"role": ["user"]}}, r"info\['role'\] is \['user'\] \(list\); it must be 'user' or 'tool'"),
    ({"info": {"action_error": True}}, r"info\['action_error'\] is True \(bool\); say in a string"),
    ({"info": {"action_error": "\udc00"}}, r"info\['action_error'\] holds '\\udc00' at character 0"),
    ({"info": {"success": math.nan}}, r"info\['success'\] is nan \(float\); it must be True or False, or None"),
    ({"info": {"success": "false"}}, r"info\['success'\] is 'false' \(str\); it must be True or False, or None"),
    ({"info": {"success": 1}}, r"info\['success'\] is 1 \(int\); it must be True or False, or None"),
]
WRONG_REWARDS = [
    ({"reward": "0.5"}, r"the reward is '0.5' \(str\); it must be a number"),
    ({"reward": None}, r"the reward is None \(NoneType\); it must be a number"),
    ({"reward": Decimal("0.5")}, r"the reward is Decimal\('0.5'\) \(Decimal\); it must be a number"),
    ({"reward": 1 + 0j}, r"the reward is \(1\+0j\) \(complex\); it must be a number"),
    ({"reward": np.array([0.5])}, r"the reward is array\(\[0.5\]\) \(ndarray\); it must be a number"),
    ({"reward": math.nan}, "a reward must be a finite number, got nan"),
    ({"reward": 10**400}, r"a reward must be a finite number, got 1000.*\(int\)"),
    ({"info": {"reward_components": [0.5]}}, r"info\['reward_components'\] is \[0.5\] \(list\); it must be a dict"),
    ({"info": {"reward_components": {"a": "0.5"}}}, r"the reward component 'a' is '0.5' \(str\); it must be a number"),
    ({"info": {"reward_components": {"a": None}}}, r"the reward component 'a' is None \(NoneType\)"),
    ({"info": {"reward_components": {1: 0.5}}}, r"has the key 1 \(int\); the name of a component is a string"),
    ({"info": {"reward_components": {"\ud800": 0.5}}}, "the name of a reward component holds"),
    ({"reward": 0.0, "info": {"reward_components": {"a": 1e308, "b": 1e308}}}, "sum to nan, but the reward is 0.0"),
    ({"reward": 1e308, "info": {"reward_components": {"a": 1e308, "b": 1e308}}}, "sum to nan, but the reward is 1e"),
    ({"reward": 0.0, "info": {"reward_components": {"a": 10**400}}}, "sum to nan, but the reward is 0.0"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_STEPS)
def test_a_step_of_the_wrong_types_is_an_error_that_says_what_to_return(changes, message):
    for env in (Script(returned(**changes)), MaxTurns(Script(returned(**changes)), 1)):
        with pytest.raises(ContractError, match=f"^Script: {message}"):
            run(EpisodeGuard(env), 1)


@pytest.mark.parametrize(("changes", "message"), WRONG_REWARDS)
def test_a_reward_that_is_no_number_is_an_error_that_says_what_to_return(changes, message):
    with pytest.raises(RewardError, match=f"^Script: .*{message}"):
        run(EpisodeGuard(Script(returned(**changes))), 1)


@pytest.mark.parametrize("result", [None, "on", ("on", 0.5, False, {}), ["on", 0.5, False, False, {}]])
def test_a_step_of_another_form_is_an_error(result):
    for env in (Script(result), MaxTurns(Script(result), 3)):
        with pytest.raises(
            ContractError, match=r"^Script: step returned .*; return \(observation, reward, terminated, tr"
        ):
            run(EpisodeGuard(env), 1)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("start", r"reset returned 'start' \(str\); return \(observation, info\)"),
        (("start",), r"reset returned \('start',\) \(tuple\); return \(observation, info\)"),
        ((7, {}), r"the observation is 7 \(int\); it must be a string"),
        (("\udc80", {}), r"the observation holds '\\udc80' at character 0"),
        (("start", None), r"info is None \(NoneType\); it must be a dict"),
        (("start", {"role": "assistant"}), r"info\['role'\] is 'assistant'"),
        (("start", {"success": "no"}), r"info\['success'\] is 'no'"),
    ],
)
def test_a_reset_of_the_wrong_types_is_an_error_and_starts_no_episode(result, message):
    class Resets(Script):
        def reset(self, *, seed=None, options=None):
            return result

    env = EpisodeGuard(Resets())
    with pytest.raises(ContractError, match=f"^Resets: {message}"):
        env.reset(seed=0)
    with pytest.raises(EpisodeOrderError):
        env.step("x")


@pytest.mark.parametrize(
    "changes",
    [
        {"observation": "日本 🙂"},
        {"observation": type("Text", (str,), {})("on")},
        {"terminated": np.bool_(True)},
        {"truncated": np.bool_(False)},
        {"reward": 1},
        {"reward": True},
        {"reward": np.float32(0.5)},
        {"reward": np.int64(2)},
        {"reward": Fraction(1, 2)},
        {"reward": np.float32(0.5), "info": {"reward_components": {"a": np.float32(0.25), "b": np.float64(0.25)}}},
        {"reward": 1.0, "info": {"reward_components": {"é": 1}}},
        {"info": {"reward_components": None, "role": "tool", "action_error": "déjà", "success": np.bool_(True)}},
        {"info": {"success": None, "action_error": None}},
        {"reward": 1e308, "info": {"reward_components": {"a": 1e308}}},
    ],
)
def test_numpy_and_other_numbers_are_as_good_as_pythons_and_nothing_is_changed(changes):
    result = returned(**changes)
    assert tuple(run(EpisodeGuard(Script(result)), 1)[0]) == result


def test_the_errors_of_the_contract_are_of_this_library():
    assert issubclass(RewardError, ContractError) and issubclass(ContractError, EnvGymError)


def test_components_beyond_the_largest_float_are_a_reward_error_already_when_the_step_is_built():
    for reward in ({"a": 1e308, "b": 1e308}, {"a": 10**400}, 10**400, -(10**400)):
        with pytest.raises(RewardError, match="a reward must be a finite number"):
            Step.running("x", reward)
