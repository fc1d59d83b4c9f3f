"""The pointer chase: rewards by hand, isolation of mistakes, and what its players score."""

import re

from episodes import play, solver

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
    step = env.step("get(k7")
    assert step.info["action_error"] == step.observation and len(step.observation) <= 50
    assert env.step(f"answer({value})").info["success"] is True


def test_a_wrong_answer_ends_without_success_and_without_reward():
    env, key = start()
    _, value = chain_of(env, key)
    step = env.step("answer(b0)" if value != "b0" else "answer(b1)")
    assert step.terminated and step.info["success"] is False
    assert step.reward == 0.0 and step.info["reward_components"] == {"answer": 0.0}


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


def test_hops_fix_the_length_of_the_chain():
    for hops in (1, 2, 5, 7):
        env, key = start(hops=hops)
        assert len(chain_of(env, key)[0]) == hops
    lengths = {len(play(PointerChase(), solver, seed)) - 1 for seed in range(40)}
    assert lengths == {2, 3, 4}


def test_texts_are_short():
    assert len(PointerChase.system_prompt) <= 60
    assert format_call("get", {"key": "k7"}, "function") == "get(k7)"
