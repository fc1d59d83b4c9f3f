"""The token budget and the time limit cut after the step that reaches them."""

import pytest

from envgym import Step, TextEnv
from envgym.wrappers import TimeLimit, TokenBudget, count_bytes


class Echo(TextEnv):
    """Answers with the action; never ends."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "abc", {}

    def step(self, action):
        return Step.running(action, {"r": 1.0})


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("é", 2), ("\U0001f600", 4), ("\ud800", 3)])
def test_bytes_are_counted_for_any_string(text, size):
    assert count_bytes(text) == size


def test_the_first_observation_the_actions_and_the_observations_count():
    env = TokenBudget(Echo(), 23)
    env.reset(seed=0)
    assert env.num_tokens == 3
    assert not env.step("12345").truncated  # 3 + 5 + 5
    assert env.num_tokens == 13
    step = env.step("12345")  # 23: reached
    assert step.truncated and step.info["truncation_reason"] == "token_budget"
    assert step.reward == 1.0 and step.observation == "12345" and step.info["reward_components"] == {"r": 1.0}


def test_one_token_below_the_budget_goes_on():
    env = TokenBudget(Echo(), 24)
    env.reset(seed=0)
    assert not any(env.step("12345").truncated for _ in range(2))
    assert env.step("").truncated is False
    assert env.step("1").truncated


def test_the_count_starts_again_with_every_episode():
    env = TokenBudget(Echo(), 10)
    for _ in range(2):
        env.reset(seed=0)
        assert not env.step("123").truncated
        assert env.step("1").truncated


@pytest.mark.parametrize("count", [words, f"{__name__}:words"])
def test_another_function_can_count(count):
    env = TokenBudget(Echo(), 5, count)
    env.reset(seed=0)
    assert not env.step("a").truncated
    assert env.step("b").truncated


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "at least 1 token, got 0"),
        ({"budget": 5, "count_tokens": "no.such:thing"}, "no.such:thing"),
        ({"budget": 5, "count_tokens": "math:pi"}, "function or its name"),
        ({"budget": 5, "count_tokens": "words"}, "'module:function'"),
        ({"budget": 5, "terminal_limits": ["soon"]}, "soon"),
    ],
)
def test_a_malformed_budget_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenBudget(Echo(), **arguments)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_time_limit_counts_from_reset_and_cuts_after_the_step_that_reaches_it():
    clock = Clock()
    env = TimeLimit(Echo(), 10.0, clock)
    env.reset(seed=0)
    clock.now += 9.99
    assert not env.step("x").truncated
    clock.now += 0.01
    step = env.step("y")
    assert (step.terminated, step.truncated, step.info["truncation_reason"]) == (False, True, "time_limit")
    assert step.observation == "y" and step.reward == 1.0
    env.reset(seed=0)
    assert not env.step("x").truncated


def test_time_spent_in_reset_does_not_count():
    clock = Clock()

    class Slow(Echo):
        def reset(self, *, seed=None, options=None):
            clock.now += 50
            return super().reset(seed=seed)

    env = TimeLimit(Slow(), 10.0, clock)
    env.reset(seed=0)
    assert not env.step("x").truncated


def test_the_clock_runs_by_itself_where_none_is_given():
    env = TimeLimit(Echo(), 1e-9)
    env.reset(seed=0)
    assert env.step("x").truncated


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(limit):
    with pytest.raises(ValueError, match="positive number of seconds"):
        TimeLimit(Echo(), limit)
