"""Wordle: marks by hand, what a guess pays, and the limit that belongs to the task."""

import pickle

import numpy as np
import pytest

import envgym
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


def play(env, player, seed):
    observation, info = env.reset(seed=seed)
    total = 0.0
    while True:
        step = env.step(player.act(observation, info))
        total += step.reward
        if step.terminated or step.truncated:
            return step.info["success"], total
        observation, info = step.observation, step.info


@pytest.mark.parametrize(
    ("secret", "guess", "marks"),
    [
        ("parry", "crane", "XYYXX"),
        ("abbey", "babes", "YYGGX"),
        ("abbey", "kebab", "XYGYY"),
        ("crane", "eerie", "XXYXG"),
        ("those", "geese", "XXXGG"),
        ("dread", "adieu", "YYXYX"),
        ("speed", "erase", "YXXYY"),
        ("steal", "speed", "GXGXX"),
        ("floor", "robot", "YYXGX"),
        ("level", "llama", "GYXXX"),
        ("allow", "llama", "YGYXX"),
        ("apple", "apple", "GGGGG"),
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


def test_the_sixth_wrong_guess_terminates_without_success():
    env = envgym.make("envgym/Wordle-v0")
    env.reset(seed=0)
    steps = [env.step("fuzzy") for _ in range(6)]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert not any(step.truncated for step in steps)
    assert steps[-1].info["success"] is False and ", was " in steps[-1].observation


def test_the_sixth_guess_may_win():
    env = with_secret("party")
    for _ in range(5):
        env.step("fuzzy")
    step = env.step("party")
    assert step.terminated and step.info["success"] is True


@pytest.mark.parametrize("action", ["", "pies", "guess crane", "cranes", "cr ne", "crané", "12345", "crane.", "0"])
def test_a_malformed_guess_costs_a_guess(action):
    env = with_secret("party")
    step = env.step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and "5 letters" in step.info["action_error"]
    assert step.observation.endswith("5 left") and not step.terminated


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


def test_free_guesses_are_cut_by_the_outer_limit():
    env = envgym.make("envgym/Wordle-v0", unlisted="free")
    env.reset(seed=0)
    steps = [env.step("?") for _ in range(24)]
    assert [step.truncated for step in steps] == [False] * 23 + [True]
    assert steps[-1].info["truncation_reason"] == "max_turns" and steps[-1].info["success"] is False


def test_unlisted_guesses_end_the_episode_at_the_last():
    env = with_secret("party")
    steps = [env.step("qwert") for _ in range(6)]
    assert steps[-1].terminated and steps[-1].info["success"] is False and steps[-1].info["action_error"]


@pytest.mark.parametrize("arguments", [{"guesses": 0}, {"guesses": 21}, {"unlisted": "x"}])
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Wordle(**arguments)


def test_the_solver_succeeds_on_every_seed():
    env = envgym.make("envgym/Wordle-v0")
    results = [play(env, env.unwrapped.solver(), seed) for seed in range(100)]
    assert all(success for success, _ in results)
    assert all(total == pytest.approx(1.7) for _, total in results)


def test_the_demonstrator_is_clearly_between_random_and_solver():
    env = envgym.make("envgym/Wordle-v0")
    rate = np.mean([play(env, env.unwrapped.demonstrator(np.random.default_rng([s, 1])), s)[0] for s in range(150)])
    assert 0.5 < rate < 0.75


def test_the_environment_passes_every_check_and_can_be_pickled():
    envgym.check_env("envgym/Wordle-v0").raise_if_failed()
    env = with_secret("party")
    assert pickle.loads(pickle.dumps(env)).step("crane") == env.step("crane")
