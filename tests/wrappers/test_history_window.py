"""An observation carries the last turns, within its bounds, and never more than once it was said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Step, TextEnv
from envgym.wrappers import HistoryWindow


class Tell(TextEnv):
    """Tells what it was given to tell."""

    def __init__(self, *texts):
        self.texts = texts

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self.texts[0], {}

    def step(self, action):
        self.turn += 1
        return Step.running(self.texts[self.turn])


def play(env, actions):
    return [env.reset(seed=0)[0], *(env.step(action).observation for action in actions)]


def test_the_last_turns_come_before_the_observation():
    assert play(HistoryWindow(Tell("1-64", "higher", "lower", "won"), 1), ["32", "48", "40"]) == [
        "1-64",
        "[observation] 1-64\n[action] 32\n[now] higher",
        "[1 earlier turns left out]\n[observation] higher\n[action] 48\n[now] lower",
        "[2 earlier turns left out]\n[observation] lower\n[action] 40\n[now] won",
    ]


def test_two_turns_are_shown_in_their_order():
    seen = play(HistoryWindow(Tell("a", "b", "c"), 2), ["1", "2"])
    assert seen[-1] == "[observation] a\n[action] 1\n[observation] b\n[action] 2\n[now] c"


def test_the_history_starts_again_with_every_episode():
    env = HistoryWindow(Tell("a", "b"), 3)
    assert play(env, ["1"]) == play(env, ["1"])


def test_a_long_turn_loses_its_middle_and_the_observation_stays_whole():
    seen = play(HistoryWindow(Tell("a", "b" * 500), 3, max_chars=64), ["x" * 1000])[-1]
    history, now = seen.split("[now] ")
    assert now == "b" * 500
    assert len(history) <= 64 and history.startswith("[observation]") and " ... " in history


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), min_size=1, max_size=12), st.integers(64, 200))
def test_the_history_keeps_its_bound(turns, max_chars):
    env = HistoryWindow(Tell(*(text for text, _ in turns), "end"), 4, max_chars)
    for seen, (text, _) in zip(play(env, [action for _, action in turns])[1:], [*turns[1:], ("end", "")], strict=True):
        assert seen.endswith(f"[now] {text}")
        assert len(seen) - len(f"[now] {text}") <= max_chars


@pytest.mark.parametrize("arguments", [{"num_turns": 0}, {"max_chars": 63}])
def test_bounds_that_are_too_small_are_refused(arguments):
    with pytest.raises(ValueError, match="at least"):
        HistoryWindow(Tell("a"), **arguments)
