"""Upkeep: the game follows its model, and looking past the cut is worth twice what the cut shows."""

import numpy as np
import pytest
from episodes import demonstrator, play, solver

import envgym
from envgym.environments.upkeep import Upkeep
from envgym.environments.upkeep.environment import ACTIONS
from envgym.environments.upkeep.planning import (
    dynamics,
    optimal_policy,
    reward_per_turn,
    state_index,
    truncation_blind_policy,
)
from envgym.environments.upkeep.players import TablePlayer


def state(observation):
    _, soil, _, weeds = observation.split()
    return int(soil), int(weeds)


def mean_reward(start, num_episodes=150):
    """Mean reward of a turn; `start(env, seed)` makes the player of an episode."""
    env = envgym.make("envgym/Upkeep-v0")
    return float(np.mean([step.reward for seed in range(num_episodes) for step in play(env, start, seed)]))


def test_looking_past_the_cut_pays_at_least_twice_as_much():
    optimal, blind = reward_per_turn(optimal_policy()), reward_per_turn(truncation_blind_policy(segment=8))
    assert optimal >= 0.5
    assert optimal >= 2 * blind
    assert reward_per_turn(optimal_policy(), 1000) >= 3 * reward_per_turn(truncation_blind_policy(segment=8), 1000)


def test_within_a_segment_the_blind_policy_is_the_better_one():
    assert reward_per_turn(truncation_blind_policy(segment=8), 8) > reward_per_turn(optimal_policy(), 8) + 0.05


def test_the_blind_policy_is_no_better_than_any_policy_that_differs_in_one_state():
    blind = truncation_blind_policy(segment=8)
    score = reward_per_turn(blind, 8)
    for index in range(len(blind)):
        for action in range(3):
            changed = blind.copy()
            changed[index] = action
            assert reward_per_turn(changed, 8) <= score + 1e-3


def test_the_two_policies_part_on_rich_soil():
    for soil in range(2, 8):
        assert ACTIONS[optimal_policy()[state_index(soil, 0)]] == "rest"
        assert ACTIONS[truncation_blind_policy()[state_index(soil, 0)]] == "crop"


def test_the_demonstrator_is_clumsy_but_beats_the_blind_policy():
    score = mean_reward(demonstrator)
    assert reward_per_turn(truncation_blind_policy()) + 0.015 < score < 0.28


def test_one_improvement_step_on_clumsy_play_leads_up_with_bootstrapping_and_not_without():
    transitions, rewards = dynamics()
    clumsy = 0.03 + 0.14 * np.eye(3)[optimal_policy()] + 0.35 * np.array([1, 0, 0]) + 0.15
    clumsy /= clumsy.sum(axis=1, keepdims=True)
    step, reward = np.einsum("sa,ast->st", clumsy, transitions), np.einsum("sa,as->s", clumsy, rewards)
    values = np.linalg.solve(np.eye(30) - 0.95 * step, reward)
    assert reward_per_turn((rewards + 0.95 * transitions @ values).argmax(axis=0)) > 1.7 * reward_per_turn(clumsy)
    blind = sum((rewards + transitions @ _cut_values(step, reward, left)).T for left in range(8))
    assert reward_per_turn(blind.argmax(axis=1)) < reward_per_turn(clumsy)


def _cut_values(step, reward, left):
    """Values with this many turns left and nothing after them."""
    values = np.zeros(30)
    for _ in range(left):
        values = reward + step @ values
    return values


def test_the_game_agrees_with_the_model():
    assert mean_reward(solver) == pytest.approx(reward_per_turn(optimal_policy()), abs=0.015)
    blind = truncation_blind_policy()
    assert mean_reward(lambda env, seed: TablePlayer(blind)) == pytest.approx(reward_per_turn(blind), abs=0.015)


@pytest.mark.parametrize("action", ACTIONS)
def test_transitions_have_the_frequencies_of_the_model(action):
    transitions, rewards = dynamics()
    assert transitions.sum(axis=2) == pytest.approx(np.ones((3, 30)))
    counts = np.zeros((30, 30))
    env = Upkeep()
    for seed in range(6000):
        before = state_index(*state(env.reset(seed=seed)[0]))
        step = env.step(action)
        counts[before, state_index(*state(step.observation))] += 1
        assert step.reward == pytest.approx(rewards[ACTIONS.index(action), before])
    frequencies = counts / counts.sum(axis=1, keepdims=True)
    assert np.abs(frequencies - transitions[ACTIONS.index(action)]).max() < 0.15
    assert not counts[transitions[ACTIONS.index(action)] == 0].any()


def test_it_never_ends_by_itself_and_is_cut_after_48_turns():
    env = Upkeep()
    env.reset(seed=0)
    assert not any(env.step("crop")[2] or env.step("rest")[3] for _ in range(300))
    limited = envgym.make("envgym/Upkeep-v0")
    limited.reset(seed=0)
    steps = [limited.step("crop") for _ in range(48)]
    assert [step.truncated for step in steps] == [False] * 47 + [True]
    assert not steps[-1].terminated and "success" not in steps[-1].info


def test_starts_cover_every_state():
    env = Upkeep()
    assert {state(env.reset(seed=seed)[0]) for seed in range(600)} == {(s, w) for s in range(10) for w in range(3)}


def test_any_other_word_is_a_turn_without_work():
    env = Upkeep()
    before, _ = env.reset(seed=3)
    assert state(env.step("harvest").observation)[0] == state(before)[0]


def test_rewards_of_a_turn_are_bounded():
    env = Upkeep()
    env.reset(seed=1)
    env.action_space.seed(1)
    rewards = [env.step(env.action_space.sample()).reward for _ in range(500)]
    assert min(rewards) >= 0 and max(rewards) <= 1
