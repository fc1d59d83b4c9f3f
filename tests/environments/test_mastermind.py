"""Mastermind: pegs by hand and by brute force, information, and the limit that belongs to the task."""

import itertools
import math
import pickle

import numpy as np
import pytest

import envgym
from envgym.environments.mastermind import Mastermind
from envgym.environments.mastermind.codes import all_codes, pegs


def code(text):
    return np.array([int(digit) for digit in text], dtype=np.uint8)


def answer(secret, guess, colours=6):
    black, white = pegs(code(secret)[None], code(guess), colours)
    return int(black[0]), int(white[0])


def with_secret(secret, **kwargs):
    """An episode with this secret, found by trying seeds."""
    env = Mastermind(**kwargs)
    for seed in range(50_000):
        env.reset(seed=seed)
        if "".join(map(str, env._secret)) == secret:
            return env
    raise AssertionError(secret)


def play(env, player, seed):
    observation, info = env.reset(seed=seed)
    components = {}
    while True:
        step = env.step(player.act(observation, info))
        for name, value in step.info["reward_components"].items():
            components[name] = components.get(name, 0.0) + value
        if step.terminated or step.truncated:
            return step.info["success"], components
        observation, info = step.observation, step.info


def pegs_by_removal(secret, guess):
    """The rule as one plays it by hand: cross out what agrees, then look for the rest."""
    rest = [(s, g) for s, g in zip(secret, guess, strict=True) if s != g]
    missing, white = [s for s, _ in rest], 0
    for _, g in rest:
        if g in missing:
            missing.remove(g)
            white += 1
    return len(secret) - len(rest), white


@pytest.mark.parametrize(
    ("secret", "guess", "expected"),
    [
        ("1122", "1213", (1, 2)),
        ("1234", "4321", (0, 4)),
        ("1111", "1112", (3, 0)),
        ("1112", "2111", (2, 2)),
        ("6543", "1221", (0, 0)),
        ("4254", "2344", (1, 2)),
        ("3355", "5533", (0, 4)),
        ("1234", "1234", (4, 0)),
    ],
)
def test_pegs_follow_the_rule_for_repeated_colours(secret, guess, expected):
    assert answer(secret, guess) == expected


def test_pegs_agree_with_crossing_out_for_every_pair():
    codes = ["".join(digits) for digits in itertools.product("1234", repeat=3)]
    assert [tuple(map(int, c)) for c in codes] == [tuple(row) for row in all_codes(3, 4).tolist()]
    for guess in codes:
        blacks, whites = pegs(all_codes(3, 4), code(guess), 4)
        for secret, black, white in zip(codes, blacks, whites, strict=True):
            assert (black, white) == pegs_by_removal(secret, guess)


def test_rewards_of_an_episode():
    env = with_secret("112", length=3, colours=2, guesses=3)
    assert env.step("222").observation == "black 1 white 0, 2 left"
    # Of the eight codes 112, 121 and 211 have one 2; of these three only 112 answers the guess 121 with one black.
    env = with_secret("112", length=3, colours=2, guesses=3)
    step = env.step("222")
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(8 / 3) / 3)}
    step = env.step(" 222\n")
    assert step.info["reward_components"] == {"information": 0.0}
    step = env.step("112")
    assert step.observation == "black 3 white 0" and step.terminated and step.info["success"] is True
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(3) / 3), "win": 1.0}


def test_information_sums_to_one_when_the_code_is_found():
    env = envgym.make("envgym/Mastermind-v0")
    for seed in range(20):
        success, components = play(env, env.unwrapped.solver(), seed)
        assert success and components == {"information": pytest.approx(1.0), "win": 1.0}


@pytest.mark.parametrize(
    "action", ["", "123", "12345", "1237", "0123", "1 2 3 4", "guess 1234", "١٢٣٤", "²111", "-123"]
)
def test_anything_but_a_code_costs_a_guess(action):
    env = with_secret("1234")
    step = env.step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and step.observation.endswith("7 left")
    assert step.info["action_error"] == "expected 4 digits from 1 to 6"
    steps = [env.step(action) for _ in range(7)]
    assert [step.terminated for step in steps] == [False] * 6 + [True]
    assert steps[-1].info["action_error"] and steps[-1].info["success"] is False


def test_the_last_wrong_guess_terminates_without_success_and_the_last_may_win():
    env = envgym.make("envgym/Mastermind-v0", guesses=3)
    env.reset(seed=0)
    steps = [env.step("1111") for _ in range(3)]
    assert [step.terminated for step in steps] == [False, False, True] and not any(step.truncated for step in steps)
    assert steps[-1].info["success"] is False and ", was " in steps[-1].observation
    env = with_secret("1234", guesses=3)
    env.step("1111"), env.step("1111")
    assert env.step("1234").info["success"] is True


@pytest.mark.parametrize(
    "arguments", [{"length": 0}, {"length": 9}, {"colours": 1}, {"colours": 10}, {"guesses": 0}, {"guesses": 51}]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Mastermind(**arguments)
    with pytest.raises(ValueError, match="100000"):
        Mastermind(length=8, colours=9)


def test_the_solver_succeeds_on_every_seed():
    env = envgym.make("envgym/Mastermind-v0")
    assert all(play(env, env.unwrapped.solver(), seed)[0] for seed in range(60))
    large = envgym.make("envgym/Mastermind-v0", length=5, colours=9, guesses=12)
    assert all(play(large, large.unwrapped.solver(), seed)[0] for seed in range(5))


def test_the_demonstrator_is_clearly_between_random_and_solver():
    env = envgym.make("envgym/Mastermind-v0")
    rate = np.mean([play(env, env.unwrapped.demonstrator(np.random.default_rng([s, 1])), s)[0] for s in range(300)])
    assert 0.55 < rate < 0.82


def test_the_environment_passes_every_check_and_can_be_pickled():
    envgym.check_env("envgym/Mastermind-v0").raise_if_failed()
    env = with_secret("1234")
    assert pickle.loads(pickle.dumps(env)).step("1122") == env.step("1122")
