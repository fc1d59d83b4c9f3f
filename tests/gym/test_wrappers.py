"""The turn limit cuts where it should, and the guard refuses what breaks the contract."""

import pytest

from envgym import Step, TextEnv, TruncationReason
from envgym.errors import EpisodeOrderError, RewardError
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


def test_a_limit_that_belongs_to_the_task_terminates():
    step = run(MaxTurns(Script(RUNNING), 1, [TruncationReason.MAX_TURNS]), 1)[0]
    assert (step.terminated, step.truncated) == (True, False)
    assert "truncation_reason" not in step.info


def test_a_termination_on_the_step_of_the_limit_wins():
    step = run(MaxTurns(Script(Step.terminal("won", 1.0, success=True)), 1), 1)[0]
    assert (step.terminated, step.truncated) == (True, False)
    assert "truncation_reason" not in step.info


def test_a_truncation_of_the_environment_keeps_its_reason():
    step = run(MaxTurns(Script(Step.truncation("late", reason="time_limit")), 1), 1)[0]
    assert step.truncated and step.info["truncation_reason"] == "time_limit"


def test_both_flags_of_the_environment_are_left_untouched():
    both = Step("x", 0.0, True, True, {"truncation_reason": "environment"})
    assert run(MaxTurns(Script(both), 1), 1)[0] == both


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
