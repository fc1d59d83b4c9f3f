"""ToyText as text: the same episodes as Gymnasium's, readable states, and what the players score."""

import gymnasium
import numpy as np
import pytest
from episodes import demonstrator, play, solver

import envgym
from envgym.environments.toy_text import Blackjack, CliffWalking, FrozenLake, Taxi
from envgym.environments.toy_text.players import optimal_policy

NATIVE = {
    "FrozenLake": ("FrozenLake-v1", {"is_slippery": False}),
    "Taxi": ("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3", {}),
    "CliffWalking": ("CliffWalking-v1", {}),
    "Blackjack": ("Blackjack-v1", {"sab": True}),
}
CLASSES = {"FrozenLake": FrozenLake, "Taxi": Taxi, "CliffWalking": CliffWalking, "Blackjack": Blackjack}


def scores(id, start, num_episodes, **kwargs):
    """Success rate and mean total reward."""
    env = envgym.make(id, **kwargs)
    played = [play(env, start, seed) for seed in range(num_episodes)]
    successes = [bool(steps[-1].info.get("success")) for steps in played]
    return np.mean(successes), np.mean([sum(step.reward for step in steps) for steps in played])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("FrozenLake", {}), ("FrozenLake", {"is_slippery": True})),
        *(("FrozenLake", {"is_slippery": True, "map_name": "8x8"}), ("Taxi", {}), ("Taxi", {"is_rainy": True})),
        *(("CliffWalking", {}), ("CliffWalking", {"is_slippery": True}), ("Blackjack", {})),
    ],
)
def test_episodes_are_those_of_gymnasium(name, arguments):
    id, native_arguments = NATIVE[name]
    native = gymnasium.make(id, **{**native_arguments, **arguments}, disable_env_checker=True)
    env = CLASSES[name](**arguments)
    rng, reasons = np.random.default_rng(0), set()
    for seed in range(60):
        state, _ = native.reset(seed=seed)
        env.reset(seed=seed)
        for _ in range(200):
            assert env.state == state
            action = int(rng.integers(len(env.words)))
            state, reward, terminated, truncated, _ = native.step(action)
            step = env.step(env.words[action])
            assert (step.reward, step.terminated, step.truncated) == (reward, terminated, False)
            if terminated or truncated:
                reasons.add(terminated)
                break
    assert True in reasons or name == "CliffWalking" or arguments.get("is_rainy")


def test_a_frozen_lake_reads_as_a_map():
    env = FrozenLake()
    assert env.reset(seed=0)[0] == (
        "@ F F F\nF H F H\nF F F H\nH F F G\nrow 0, column 0; not slippery\nlegal: left, down, right, up"
    )
    assert env.step("Right \n").observation.startswith("S @ F F\n")
    step = env.step("down")
    assert step.terminated and step.info["success"] is False and step.reward == 0
    assert step.observation.endswith("you fell into a hole")


def test_the_goal_of_the_lake_pays_one():
    env = FrozenLake()
    env.reset(seed=0)
    for word in ("down", "down", "right", "right", "down"):
        assert env.step(word).info == {"success": False, "reward_components": {"goal": 0.0}, "role": "user"}
    step = env.step("right")
    assert step.terminated and step.info["success"] is True and step.info["reward_components"] == {"goal": 1.0}


def test_random_lakes_differ_by_seed():
    env = FrozenLake(map_name="random")
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) > 10


def test_the_cliff_costs_a_hundred_and_leads_back():
    env = CliffWalking()
    observation, _ = env.reset(seed=0)
    assert observation.splitlines()[3] == "@ C C C C C C C C C C G"
    step = env.step("right")
    assert step.info["reward_components"] == {"cliff": -100.0} and not step.terminated
    assert step.observation == observation
    assert env.step("up").info["reward_components"] == {"step": -1.0}


def test_a_taxi_ride_pays_its_parts():
    env = Taxi()
    observation, _ = env.reset(seed=0)
    assert observation.splitlines()[0] == "+---------+" and "dropoff" not in observation.splitlines()[-1]
    assert env.step("dropoff").info["reward_components"] == {"illegal": -10.0}
    *way, last = play(env, solver, seed=0)
    assert all(step.info["reward_components"] == {"step": -1.0} for step in way)
    assert last.info["reward_components"] == {"delivery": 20.0}
    assert last.info["success"] is True and "delivered" in last.observation


def test_the_legal_words_of_the_taxi_change_its_state():
    env = Taxi()
    for seed in range(50):
        observation, _ = env.reset(seed=seed)
        legal = observation.splitlines()[-1].removeprefix("legal: ").split(", ")
        for word in env.words:
            env.reset(seed=seed)
            before = env.state
            env.step(word)
            assert (env.state != before) == (word in legal)


def test_a_blackjack_hand_shows_its_cards_and_its_outcome():
    env = Blackjack()
    outcomes = set()
    for seed in range(40):
        observation, info = env.reset(seed=seed)
        assert info == {} and f"dealer shows {'A' if env.state[1] == 1 else env.state[1]}" in observation
        step = env.step("stick")
        assert step.terminated and "success" not in step.info
        assert step.observation.endswith(step.info["outcome"])
        assert step.reward == {"won": 1, "draw": 0, "lost": -1}[step.info["outcome"]]
        outcomes.add(step.info["outcome"])
    assert outcomes == {"won", "draw", "lost"}


def test_value_iteration_by_hand():
    table = {
        0: {0: [(1.0, 0, 0.0, False)], 1: [(0.5, 1, 0.0, False), (0.5, 0, -1.0, True)]},
        1: {0: [(1.0, 1, 3.0, True)], 1: [(1.0, 0, 0.0, False)]},
    }  # V(1) = 3; going from 0 is worth 0.5 * 0.9 * 3 - 0.5 = 0.85 > 0
    assert optimal_policy(table, discount=0.9).tolist() == [1, 0]
    table[0][1] = [(0.1, 1, 0.0, False), (0.9, 0, -1.0, True)]
    assert optimal_policy(table, discount=0.9).tolist() == [0, 0]


def test_basic_strategy_is_the_better_choice_in_every_state():
    def final_sums(total, ace):
        best = total + 10 if ace and total <= 11 else total
        if best >= 17:
            return {best if best <= 21 else 0: 1.0}
        sums = {}
        for card in range(1, 11):
            chance = 4 / 13 if card == 10 else 1 / 13
            for end, p in final_sums(total + card, ace or card == 1).items():
                sums[end] = sums.get(end, 0) + chance * p
        return sums

    def value(total, ace, ends, stick_only=False, hit_only=False):
        if total > 21:
            return -1.0
        best = total + 10 if ace and total <= 11 else total
        stick = sum(p * ((best > end) - (best < end)) for end, p in ends.items())
        if stick_only:
            return stick
        key = total, ace
        if key not in known:
            known[key] = sum((4 if c == 10 else 1) / 13 * value(total + c, ace or c == 1, ends) for c in range(1, 11))
        return known[key] if hit_only else max(stick, known[key])

    env = Blackjack()
    env.reset(seed=0)
    player = env.solver()
    for dealer in range(1, 11):
        ends, known = {}, {}
        for card in range(1, 11):
            for end, p in final_sums(dealer + card, 1 in (dealer, card)).items():
                ends[end] = ends.get(end, 0) + (4 if card == 10 else 1) / 13 * p
        for ace in (False, True):
            for total in range(2 if ace else 4, 12 if ace else 22):
                env.native.dealer = [dealer, 5]
                env.native.player = (
                    [1, *[1] * (total - 1)] if ace else [2] * (total // 2 - total % 2) + [3] * (total % 2)
                )
                if not ace and sum(env.native.player) != total:
                    continue
                better = "stick" if value(total, ace, ends, True) > value(total, ace, ends, hit_only=True) else "hit"
                assert player.act("", {}) == better, (dealer, ace, total)


def test_the_solver_earns_what_chance_allows():
    assert scores("envgym/Taxi-v0", solver, 100)[1] == pytest.approx(8, abs=0.6)
    success, _ = scores("envgym/FrozenLake-v0", solver, 400, is_slippery=True)
    assert success == pytest.approx(0.74, abs=0.06)
    assert scores("envgym/Blackjack-v0", solver, 1500)[1] == pytest.approx(-0.045, abs=0.06)


def test_the_demonstrator_earns_little():
    assert scores("envgym/CliffWalking-v0", demonstrator, 40)[1] < -30
    assert scores("envgym/Blackjack-v0", demonstrator, 1000)[1] < -0.15
