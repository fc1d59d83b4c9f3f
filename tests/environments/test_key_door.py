"""Key and door: a choice that pays nothing when it is made and decides the episode at its end."""

import numpy as np
import pytest

import envgym
from envgym.environments.key_door import KeyDoor
from envgym.environments.key_door.house import COLOURS, Room, draw_rooms


def start(gate="green", rooms=None):
    """An episode with this gate and these rooms."""
    rooms = (Room("one", coin=True), Room("two", offer="red"), Room("three", offer="green")) if rooms is None else rooms
    env = KeyDoor(rooms=len(rooms))
    env.reset(seed=0)
    env._gate, env._rooms = gate, rooms
    return env


def say(env, *words):
    """The rewards of these words, and the last step."""
    steps = [env.step(word) for word in words]
    return [step.info["reward_components"] for step in steps], steps[-1]


def test_the_rewards_of_a_clean_episode():
    rewards, step = say(start(), "take green", "walk", "coin", "walk", "walk", "trade", "walk", "open")
    nothing, coin = {"coin": 0.0}, {"coin": 0.05}
    assert rewards == [nothing, nothing, coin, nothing, nothing, coin, nothing, {"gate": 1.0}]
    assert step.terminated and step.info["success"] is True and step.observation == "the gate opens."


@pytest.mark.parametrize("colour", ["red", "blue", "gold"])
def test_a_wrong_key_looks_and_pays_the_same_until_the_gate(colour):
    words = ("walk", "coin", "walk", "walk", "walk")
    right, wrong = start(), start()
    first, second = right.step("take green"), wrong.step(f"take {colour}")
    assert first == second
    assert [right.step(word) for word in words] == [wrong.step(word) for word in words]
    step = wrong.step("open")
    assert step.terminated and step.info["success"] is False and step.info["reward_components"] == {"gate": 0.0}
    assert right.step("open").info["success"] is True


def test_a_trade_pays_at_once_and_may_cost_or_mend_the_gate():
    rewards, step = say(start(), "take green", "walk", "walk", "trade", "walk", "walk", "open")
    assert rewards[3] == {"coin": 0.05} and step.info["success"] is False
    rewards, step = say(start(), "take green", "walk", "walk", "trade", "walk", "trade", "walk", "open")
    assert rewards[5] == {"coin": 0.05} and step.info["success"] is True
    _, step = say(start(), "take blue", "walk", "walk", "walk", "trade", "walk", "open")
    assert step.info["success"] is True


def test_words_that_do_nothing_cost_a_little():
    env = start()
    assert say(env, "open", "coin", "trade")[0] == [{"idle": -0.01}] * 3
    env.step("walk")
    rewards, step = say(env, "take green", "open", "trade", "coin", "coin")
    assert rewards == [{"idle": -0.01}] * 3 + [{"coin": 0.05}, {"idle": -0.01}]
    assert step.observation == "one." and "action_error" not in step.info
    env.step("walk")
    rewards, step = say(env, "trade")
    assert rewards == [{"idle": -0.01}] and step.observation.endswith(
        "a trader gives a red key and a coin for your key."
    )
    _, step = say(env, "walk", "walk", "walk")
    assert step.observation == "the gate." and step.info["reward_components"] == {"idle": -0.01}
    assert env.step("open").info["success"] is False


def test_a_trader_trades_once():
    env = start()
    rewards, step = say(env, "take green", "walk", "walk", "trade", "trade")
    assert rewards[3:] == [{"coin": 0.05}, {"idle": -0.01}] and step.observation == "two."


def test_a_key_can_be_changed_at_the_start_only():
    assert say(start(), "take red", "take green", *["walk"] * 4, "open")[1].info["success"] is True
    assert say(start(), "take red", "walk", "take green", *["walk"] * 3, "open")[1].info["success"] is False


def test_words_may_be_written_in_any_case():
    assert start().step(" TAKE Green\n").observation == "you have a key."


def test_rooms_hold_what_the_text_says():
    rooms = draw_rooms(4000, "blue", np.random.default_rng(0))
    assert np.mean([room.coin for room in rooms]) == pytest.approx(0.5, abs=0.03)
    offers = [room.offer for room in rooms if room.offer]
    assert len(offers) / len(rooms) == pytest.approx(0.25, abs=0.03)
    assert np.mean([offer == "blue" for offer in offers]) == pytest.approx(0.5, abs=0.06) and set(offers) == set(
        COLOURS
    )
    assert not any(room.coin and room.offer for room in rooms)


def test_the_reward_lies_a_thousand_bytes_behind_the_choice():
    for rooms, least in ((12, 1000), (100, 9000)):
        env = envgym.make("envgym/KeyDoor-v0", rooms=rooms, max_turns=2 * rooms + 8)
        lengths = []
        for seed in range(20):
            player = env.unwrapped.solver()
            trajectory = envgym.run_episode(env, lambda text, player=player: player.act(text, {}), seed=seed)
            assert trajectory.turns[0].action.startswith("take ") and trajectory.turns[-1].reward == 1.0
            lengths.append(sum(len(turn.observation) + len(turn.action) for turn in trajectory.turns[1:]))
        assert np.mean(lengths) > least
