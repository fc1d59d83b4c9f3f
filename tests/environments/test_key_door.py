"""Key and door: a choice that pays nothing when it is made and decides the episode at its end."""

import pickle

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


def play(env, player, seed):
    observation, info = env.reset(seed=seed)
    total, turns = 0.0, 0
    while True:
        step = env.step(player.act(observation, info))
        total, turns = total + step.reward, turns + 1
        if step.terminated or step.truncated:
            return step, total, turns
        observation, info = step.observation, step.info


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


@pytest.mark.parametrize("action", ["", "take", "take pink", "walk walk", "run", "0", "take the green key"])
def test_any_other_text_is_malformed(action):
    step = start().step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and step.info["action_error"] and not step.terminated


def test_words_may_be_written_in_any_case():
    assert start().step(" TAKE Green\n").observation == "you have a key."


def test_the_limit_of_turns_truncates_and_the_gate_terminates():
    env = envgym.make("envgym/KeyDoor-v0")
    env.reset(seed=0)
    steps = [env.step("open") for _ in range(56)]
    assert [step.truncated for step in steps] == [False] * 55 + [True] and not any(step.terminated for step in steps)
    assert steps[-1].info["truncation_reason"] == "max_turns" and steps[-1].info["success"] is False


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
            trajectory = envgym.run_episode(env, _solver_of(env), seed=seed)
            assert trajectory.turns[0].action.startswith("take ") and trajectory.turns[-1].reward == 1.0
            lengths.append(sum(len(turn.observation) + len(turn.action) for turn in trajectory.turns[1:]))
        assert np.mean(lengths) > least


def _solver_of(env):
    player = env.unwrapped.solver()
    return lambda observation: player.act(observation, {})


@pytest.mark.parametrize("rooms", [-1, 201])
def test_arguments_out_of_range_are_refused(rooms):
    with pytest.raises(ValueError, match="rooms"):
        KeyDoor(rooms=rooms)


@pytest.mark.parametrize("rooms", [0, 12, 24])
def test_the_solver_succeeds_on_every_seed(rooms):
    env = envgym.make("envgym/KeyDoor-v0", rooms=rooms)
    assert all(play(env, env.unwrapped.solver(), seed)[0].info["success"] for seed in range(100))


def test_the_demonstrator_is_clearly_between_random_and_solver():
    env = envgym.make("envgym/KeyDoor-v0")
    ends = [play(env, env.unwrapped.demonstrator(np.random.default_rng([s, 1])), s)[0] for s in range(300)]
    assert 0.4 < np.mean([step.info["success"] for step in ends]) < 0.6


def test_the_environment_passes_every_check_and_can_be_pickled():
    envgym.check_env("envgym/KeyDoor-v0").raise_if_failed()
    env = start()
    assert pickle.loads(pickle.dumps(env)).step("take red") == env.step("take red")
