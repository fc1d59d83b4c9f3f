"""The higher-lower game: replies, information and the limit that belongs to the task."""

import math

import pytest
from episodes import play, solver

import envgym
from envgym.environments.higher_lower import HigherLower


def with_secret(secret):
    env = HigherLower()
    env.reset(seed=seed_of(secret))
    return env


def seed_of(secret):
    return next(seed for seed in range(2000) if secret_of(HigherLower(), seed) == secret)


def secret_of(env, seed):
    """The secret of a seed, as the last of six wrong guesses shows it."""
    env.reset(seed=seed)
    return int([env.step("0") for _ in range(6)][-1].observation.removeprefix("was "))


def test_replies_and_information_of_an_episode():
    env = with_secret(40)
    assert env.step("forty").observation == "1-64?"
    step = env.step("32")
    assert step.observation == "higher"
    assert step.info["reward_components"] == {"information": pytest.approx(1 / 6)}
    step = env.step(" 48\n")
    assert step.observation == "lower"
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(32 / 15) / 6)}
    step = env.step("40")
    assert step.terminated and step.info["success"] is True and step.observation == "correct"
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(15) / 6), "win": 1.0}


def test_information_sums_to_one_when_the_number_is_found():
    for secret in (1, 17, 64):
        steps = play(HigherLower(), solver, seed_of(secret))
        total = sum(step.info["reward_components"]["information"] for step in steps)
        if steps[-1].info["success"]:
            assert total == pytest.approx(1.0)
        else:
            assert total < 1.0


@pytest.mark.parametrize(
    ("guess", "reply"), [("0", "higher"), ("65", "lower"), ("999999999", "lower"), ("10", "higher")]
)
def test_a_guess_outside_the_remaining_range_brings_nothing(guess, reply):
    env = with_secret(40)
    env.step("32")
    step = env.step(guess)
    assert step.observation == reply and step.info["reward_components"] == {"information": 0.0}


def test_the_sixth_guess_may_win():
    env = with_secret(40)
    for _ in range(5):
        env.step("0")
    assert env.step("40").info["success"] is True


def test_bisection_finds_63_of_64_numbers():
    env = HigherLower()
    seeds = {secret_of(env, seed): seed for seed in range(2000)}
    assert set(seeds) == set(range(1, 65))
    assert sum(play(env, solver, seed)[-1].info["success"] for seed in seeds.values()) == 63


def test_a_message_cut_at_its_token_limit_loses_the_game():
    assert HigherLower.terminal_limits == {envgym.TruncationReason.RESPONSE_LENGTH}
    assert envgym.make("envgym/HigherLower-v0").get_wrapper_attr("terminal_limits") == HigherLower.terminal_limits
