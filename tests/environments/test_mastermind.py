"""Mastermind: pegs by hand and by brute force, information, and the limit that belongs to the task."""

import itertools
import math

import numpy as np
import pytest

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
        *(("1122", "1213", (1, 2)), ("1234", "4321", (0, 4)), ("1111", "1112", (3, 0)), ("1112", "2111", (2, 2))),
        *(("6543", "1221", (0, 0)), ("4254", "2344", (1, 2)), ("3355", "5533", (0, 4)), ("1234", "1234", (4, 0))),
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
    # Of the eight codes 112, 121 and 211 have one 2; of these three only 112 answers the guess 121 with one black.
    env = with_secret("112", length=3, colours=2, guesses=3)
    step = env.step("222")
    assert step.observation == "black 1 white 0, 2 left"
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(8 / 3) / 3)}
    step = env.step(" 222\n")
    assert step.info["reward_components"] == {"information": 0.0}
    step = env.step("112")
    assert step.observation == "black 3 white 0" and step.terminated and step.info["success"] is True
    assert step.info["reward_components"] == {"information": pytest.approx(math.log2(3) / 3), "win": 1.0}


def test_the_last_guess_may_win_and_may_be_lost_to_a_typo():
    env = with_secret("1234", guesses=3)
    env.step("1111"), env.step("1111")
    assert env.step("1234").info["success"] is True
    env.reset(seed=0)
    assert env.step("?").observation.endswith("2 left") and env.step("?").observation.endswith("1 left")
    step = env.step("?")
    assert step.terminated and step.info["success"] is False and step.info["action_error"]
