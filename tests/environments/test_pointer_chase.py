"""The pointer chase: rewards by hand, isolation of mistakes, and what its players score."""

import re

import numpy as np
import pytest

import envgym
from envgym.environments.pointer_chase import PointerChase
from envgym.tools import format_call


def start(**kwargs):
    env = PointerChase(**kwargs)
    observation, _ = env.reset(seed=7)
    return env, observation.removeprefix("start ")


def chain_of(env, key):
    """The keys of the chain and its value, read through the tools of a twin with the same seed."""
    twin, _ = start(hops=env.hops, distractors=env.distractors)
    keys = [key]
    while match := re.fullmatch(r"\w\d -> (\w\d)", twin.step(f"get({keys[-1]})").observation):
        keys.append(match[1])
    return keys, twin.step(f"get({keys[-1]})").observation.split(" = ")[1]


def play(env, player, seed):
    observation, info = env.reset(seed=seed)
    total = 0.0
    while True:
        step = env.step(player.act(observation, info))
        total += step.reward
        if step.terminated or step.truncated:
            return step.info["success"], total
        observation, info = step.observation, step.info


def test_the_rewards_of_a_clean_episode():
    env, key = start(hops=3)
    keys, value = chain_of(env, key)
    assert len(keys) == 3
    for i, key in enumerate(keys):
        step = env.step(f"get({key})")
        assert step.info["reward_components"] == {"progress": 0.1} and not step.terminated
        assert step.observation == (f"{key} -> {keys[i + 1]}" if i < 2 else f"{key} = {value}")
        assert step.info["role"] == "tool" and step.info["success"] is False
    step = env.step(f"answer({value})")
    assert step.info["reward_components"] == {"answer": 1.0}
    assert step.terminated and step.info["success"] is True and step.observation == "right"


def test_gets_that_bring_nothing_cost_a_little():
    env, key = start(hops=2)
    keys, value = chain_of(env, key)
    assert env.step(f"get({keys[1]})").info["reward_components"] == {"useless": -0.02}
    assert env.step(f"get({keys[0]})").info["reward_components"] == {"progress": 0.1}
    assert env.step(f"get({keys[0]})").info["reward_components"] == {"repeat": -0.02}
    step = env.step("get(y0)")
    assert step.observation == "y0 ?" and step.info["reward_components"] == {"useless": -0.02}
    assert env.step(f"answer({value})").info["success"] is True


def test_a_wrong_answer_ends_without_success_and_without_reward():
    env, key = start()
    _, value = chain_of(env, key)
    step = env.step("answer(b0)" if value != "b0" else "answer(b1)")
    assert step.terminated and step.info["success"] is False
    assert step.reward == 0.0 and step.info["reward_components"] == {"answer": 0.0}


@pytest.mark.parametrize("action", ["", "get", "get(k7", "answer(k7", "answer(k7, b4)", "go(k7)", "get()"])
def test_a_malformed_call_costs_a_turn(action):
    env, _ = start()
    step = env.step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and step.info["action_error"] == step.observation
    assert len(step.observation) <= 50 and not step.terminated


def test_some_records_lie_off_the_chain_next_to_a_key_on_it():
    env, key = start(hops=4, distractors=10)
    keys, _ = chain_of(env, key)
    others = [
        twin_key
        for twin_key in {letter + digit for letter in "bdfhjkmpqvxz" for digit in "0123456789"} - set(keys)
        if not env.step(f"get({twin_key})").observation.endswith("?")
    ]
    assert len(others) >= 5
    assert all(any(sum(a != b for a, b in zip(other, k, strict=True)) == 1 for k in keys) for other in others)


def test_the_eighth_turn_cuts_and_is_no_success():
    env = envgym.make("envgym/PointerChase-v0")
    env.reset(seed=0)
    steps = [env.step("get(y0)") for _ in range(8)]
    assert [step.truncated for step in steps] == [False] * 7 + [True]
    assert steps[-1].info["truncation_reason"] == "max_turns" and steps[-1].info["success"] is False


def test_hops_fix_the_length_of_the_chain():
    for hops in (1, 2, 5, 7):
        env, key = start(hops=hops)
        assert len(chain_of(env, key)[0]) == hops
    lengths = set()
    for seed in range(40):
        env = PointerChase()
        env.reset(seed=seed)
        player, turns = env.solver(), 0
        observation, info = env.reset(seed=seed)
        while "right" not in observation:
            observation, _, _, _, info = env.step(player.act(observation, info))
            turns += 1
        lengths.add(turns - 1)
    assert lengths == {2, 3, 4}


@pytest.mark.parametrize(
    "arguments", [{"hops": 0}, {"hops": 8}, {"hops": (3, 2)}, {"distractors": -1}, {"call_format": "x"}]
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PointerChase(**arguments)


@pytest.mark.parametrize("call_format", ["function", "hermes"])
def test_the_solver_succeeds_on_every_seed(call_format):
    env = envgym.make("envgym/PointerChase-v0", call_format=call_format)
    results = [play(env, env.unwrapped.solver(), seed) for seed in range(300)]
    assert all(success for success, _ in results)
    assert np.mean([reward for _, reward in results]) == pytest.approx(1.3, abs=0.02)


def test_the_demonstrator_succeeds_in_about_a_third_of_the_episodes():
    env = envgym.make("envgym/PointerChase-v0")
    rate = np.mean([play(env, env.unwrapped.demonstrator(np.random.default_rng([s, 1])), s)[0] for s in range(1000)])
    assert 0.25 < rate < 0.38


def test_actions_are_drawn_well_formed():
    env = PointerChase(call_format="hermes")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(20):
        assert "malformed" not in env.step(env.action_space.sample()).info["reward_components"]


def test_texts_are_short():
    assert len(PointerChase.system_prompt) <= 60
    assert format_call("get", {"key": "k7"}, "function") == "get(k7)"
