"""Rewards are scaled and filtered together with their components."""

import math

import pytest

from envgym import Step, TextEnv
from envgym.errors import RewardError
from envgym.wrappers import ComponentFilter, EpisodeGuard, RewardScale


class One(TextEnv):
    def __init__(self, step):
        self.result = step

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "", {}

    def step(self, action):
        return self.result


def one(wrap, step):
    env = EpisodeGuard(wrap(One(step)))
    env.reset(seed=0)
    return env.step("x")


PARTS = Step.running("on", {"a": 0.5, "b": -2.0, "c": 0.0})


def test_the_reward_and_each_component_are_scaled():
    step = one(lambda env: RewardScale(env, -0.5), PARTS)
    assert step.reward == 0.75
    assert step.info["reward_components"] == {"a": -0.25, "b": 1.0, "c": 0.0}
    assert PARTS.info["reward_components"] == {"a": 0.5, "b": -2.0, "c": 0.0}


def test_a_reward_without_components_is_scaled_too():
    step = one(lambda env: RewardScale(env, 3), ("on", 2.0, False, False, {}))
    assert step.reward == 6.0 and "reward_components" not in step.info


@pytest.mark.parametrize("scale", [math.inf, math.nan])
def test_a_scale_must_be_finite(scale):
    with pytest.raises(ValueError, match="finite number"):
        RewardScale(One(PARTS), scale)


def test_a_scaled_overflow_is_noticed_by_the_guard():
    with pytest.raises(RewardError):
        one(lambda env: RewardScale(env, 1e308), Step.running("on", 1e10))


def test_the_reward_is_the_sum_of_what_is_kept_and_the_rest_stays_visible():
    step = one(lambda env: ComponentFilter(env, ["a", "c", "never"]), PARTS)
    assert step.reward == 0.5
    assert step.info["reward_components"] == {"a": 0.5, "c": 0.0}
    assert step.info["other_reward_components"] == {"b": -2.0}


def test_filters_in_a_row_keep_everything_visible():
    step = one(lambda env: ComponentFilter(ComponentFilter(env, ["a", "b"]), ["b"]), PARTS)
    assert step.reward == -2.0 and step.info["reward_components"] == {"b": -2.0}
    assert step.info["other_reward_components"] == {"a": 0.5, "c": 0.0}


@pytest.mark.parametrize(("keep", "reward"), [("reward", 2.0), ("x", 0.0)])
def test_a_reward_without_components_is_one_named_reward(keep, reward):
    assert one(lambda env: ComponentFilter(env, [keep]), ("on", 2.0, False, False, {})).reward == reward


@pytest.mark.parametrize("keep", [[], "progress", [1]])
def test_the_components_to_keep_are_a_list_of_names(keep):
    with pytest.raises(ValueError, match="keep must be a list"):
        ComponentFilter(One(PARTS), keep)


def test_infinite_components_of_both_signs_are_a_reward_error():
    step = Step("x", 0.0, False, False, {"reward_components": {"a": math.inf, "b": -math.inf}})
    with pytest.raises(RewardError, match="sum to nan"):
        one(lambda env: env, step)
