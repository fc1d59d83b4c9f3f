"""A step says how it ended, and its reward is the sum of its components."""

import pytest

from envgym import Step, TextEnv
from envgym.errors import RewardError


def test_components_make_the_reward():
    step = Step.running("next", {"a": 0.1, "b": 0.2}, role="tool", score=3)
    assert step.reward == pytest.approx(0.3)
    assert step.info == {"reward_components": {"a": 0.1, "b": 0.2}, "role": "tool", "score": 3}
    assert (step.terminated, step.truncated) == (False, False)


def test_a_plain_reward_becomes_a_component():
    assert Step.running("x", 0.5).info["reward_components"] == {"reward": 0.5}
    assert Step.running("x").info["reward_components"] == {}


def test_a_step_unpacks_in_gymnasium_order():
    observation, reward, terminated, truncated, info = Step.terminal("end", 1.0, success=True)
    assert (observation, reward, terminated, truncated) == ("end", 1.0, True, False)
    assert info["success"] is True


def test_a_truncation_carries_its_reason():
    step = Step.truncation("cut", reason="time_limit", success=False, action_error="late")
    assert (step.terminated, step.truncated) == (False, True)
    assert step.info["truncation_reason"] == "time_limit"
    assert step.info["success"] is False and step.info["action_error"] == "late"
    assert type(step.info["truncation_reason"]) is str


def test_an_unknown_reason_is_a_value_error():
    with pytest.raises(ValueError, match="bored"):
        Step.truncation("cut", reason="bored")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), {"a": float("nan")}, {"a": 1.0, "b": float("-inf")}])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(RewardError, match="finite"):
        Step.running("x", reward)


def test_a_role_is_user_or_tool():
    with pytest.raises(ValueError, match="'system'"):
        Step.running("x", role="system")


def test_infos_of_two_steps_share_nothing():
    components = {"a": 1.0}
    first, second = Step.running("x", components), Step.running("x", components)
    assert first.info["reward_components"] is not second.info["reward_components"]
    assert first.info["reward_components"] is not components


def test_the_base_class_says_what_to_implement():
    class Empty(TextEnv):
        pass

    with pytest.raises(NotImplementedError, match="Empty must implement step"):
        Empty().step("x")
