"""Wordle: marks by hand, what a guess pays, and the limit that belongs to the task."""

import numpy as np
import pytest

from envgym.environments.wordle import Wordle
from envgym.environments.wordle.players import pattern_table
from envgym.environments.wordle.words import allowed, answers, mark


def with_secret(secret, **kwargs):
    """An episode with this secret, found by trying seeds."""
    env = Wordle(**kwargs)
    for seed in range(20_000):
        env.reset(seed=seed)
        if env._secret == secret:
            return env
    raise AssertionError(secret)


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        *(("parry", "crane", "XYYXX"), ("abbey", "babes", "YYGGX"), ("abbey", "kebab", "XYGYY")),
        *(("crane", "eerie", "XXYXG"), ("those", "geese", "XXXGG"), ("dread", "adieu", "YYXYX")),
        *(("speed", "erase", "YXXYY"), ("steal", "speed", "GXGXX"), ("floor", "robot", "YYXGX")),
        *(("level", "llama", "GYXXX"), ("allow", "llama", "YGYXX"), ("apple", "apple", "GGGGG")),
    ],
)
def test_marks_follow_the_rule_for_repeated_letters(secret, guess, marks):
    assert mark(secret, guess) == marks


def test_marks_agree_with_a_game_that_counts_letters():
    rng = np.random.default_rng(0)
    for i, j in rng.integers(len(answers()), size=(500, 2)):
        secret, guess = answers()[i], answers()[j]
        marks = mark(secret, guess)
        for letter in set(guess):
            shown = sum(m != "X" for g, m in zip(guess, marks, strict=True) if g == letter)
            assert shown == min(guess.count(letter), secret.count(letter))
        assert [m == "G" for m in marks] == [s == g for s, g in zip(secret, guess, strict=True)]
        number = sum("XYG".index(m) * 3**place for place, m in enumerate(marks))
        assert pattern_table()[j, i] == number


def test_the_lists_hold_five_letter_words_once_each():
    assert len(answers()) > 900 and len(allowed()) > 1400 and set(answers()) < allowed()
    assert list(answers()) == sorted(set(answers()))
    assert all(len(word) == 5 and word.isascii() and word.islower() and word.isalpha() for word in allowed())


def test_rewards_of_an_episode():
    env = with_secret("party")
    step = env.step("crane")
    assert step.observation == "cX rY aY nX eX, 5 left"
    assert step.info["reward_components"] == {"green": 0.0, "yellow": pytest.approx(0.08)}
    step = env.step(" Parry\n")
    assert step.observation == "pG aG rG rX yG, 4 left"
    assert step.info["reward_components"] == {"green": pytest.approx(0.4), "yellow": pytest.approx(0.08)}
    step = env.step("PARRY")
    assert step.info["reward_components"] == {"green": 0.0, "yellow": 0.0}
    step = env.step("party")
    assert step.terminated and step.info["success"] is True and step.observation == "pG aG rG tG yG"
    components = step.info["reward_components"]
    assert components == {"green": pytest.approx(0.1), "yellow": pytest.approx(0.04), "win": 1.0}


def test_the_sixth_guess_may_win():
    env = with_secret("party")
    assert env.step("pies").observation.endswith("5 left")
    env.reset(seed=env.np_random_seed)
    for _ in range(5):
        env.step("fuzzy")
    step = env.step("party")
    assert step.terminated and step.info["success"] is True


def test_an_unlisted_word_costs_is_free_or_is_accepted():
    env = with_secret("party")
    step = env.step("qwert")
    assert step.info["reward_components"] == {"unlisted": -0.05} and step.observation.endswith("5 left")
    assert "qwert" in step.info["action_error"]
    env = with_secret("party", unlisted="free")
    assert env.step("qwert").observation.endswith("6 left") and env.step("?").observation.endswith("6 left")
    env = with_secret("party", unlisted="accept")
    step = env.step("qwert")
    assert step.observation == "qX wX eX rY tY, 5 left" and "action_error" not in step.info
    assert env.step("?").observation.endswith("4 left")


def test_unlisted_guesses_end_the_episode_at_the_last():
    env = with_secret("party")
    steps = [env.step("qwert") for _ in range(6)]
    assert steps[-1].terminated and steps[-1].info["success"] is False and steps[-1].info["action_error"]
