"""Vector environments lose nothing: every step, final observation and info is that of the single environment."""

import gymnasium
import numpy as np
import pytest
from fakes import Countdown
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import envgym
from envgym.errors import EpisodeOrderError, RewardError
from envgym.spaces import SHARED_MEMORY_BYTES, TextSpace
from envgym.vector import make_vec
from envgym.wrappers import RewardScale

IDS = ["envgym/HigherLower-v0", "envgym/PointerChase-v0"]
NUM_ENVS, NUM_STEPS, SEED = 3, 40, 7


def make_text(env_id, mode):
    return make_vec(env_id, NUM_ENVS, autoreset_mode=mode)


def make_async(shared_memory):
    def make(env_id, mode):
        options = {"autoreset_mode": mode, "shared_memory": shared_memory}
        return gymnasium.make_vec(env_id, NUM_ENVS, "async", vector_kwargs=options)

    return make


FORMS = {
    "envgym": make_text,
    "async": make_async(False),
    "async, shared memory": make_async(True),
}


def plain(value):
    """Arrays and numbers of NumPy as Python values."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def info_of(infos, index):
    """The info of one copy, taken out of the batch."""
    own = {}
    for key, values in infos.items():
        if f"_{key}" in infos and infos[f"_{key}"][index]:
            own[key] = info_of(values, index) if isinstance(values, dict) else plain(values[index])
    return own


class Single:
    """What one copy must give, played by itself."""

    def __init__(self, env_id, seed, mode):
        self.env, self.mode, self.ended = envgym.make(env_id), mode, False
        self.observation, self.info = self.env.reset(seed=seed)

    def step(self, action):
        """(observation, reward, terminated, truncated, info) of the copy at this step."""
        if self.ended and self.mode is AutoresetMode.NEXT_STEP:
            self.ended = False
            observation, info = self.env.reset()
            return observation, 0.0, False, False, info
        step = self.env.step(action)
        self.ended = step.terminated or step.truncated
        if self.ended and self.mode is AutoresetMode.SAME_STEP:
            observation, info = self.env.reset()
            return step._replace(
                observation=observation, info={**info, "final_obs": step.observation, "final_info": step.info}
            )
        return step


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("env_id", IDS)
def test_every_copy_is_the_single_environment(env_id, form, mode):
    envs = FORMS[form](env_id, mode)
    try:
        singles = [Single(env_id, SEED + i, mode) for i in range(NUM_ENVS)]
        observations, infos = envs.reset(seed=SEED)
        assert list(observations) == [single.observation for single in singles]
        assert [info_of(infos, i) for i in range(NUM_ENVS)] == [single.info for single in singles]
        envs.action_space.seed(SEED)
        ended, kept = 0, []
        for _ in range(NUM_STEPS):
            actions = envs.action_space.sample()
            results = envs.step(actions)
            kept.append((results, results[2].tolist(), expected := []))
            for i, single in enumerate(singles):
                observation, reward, terminated, truncated, info = single.step(actions[i])
                expected.append(observation)
                assert results[0][i] == observation
                assert (results[1][i], results[2][i], results[3][i]) == (reward, terminated, truncated)
                assert info_of(results[4], i) == info
            flags = results[2] | results[3]
            ended += int(flags.sum())
            if mode is AutoresetMode.DISABLED and flags.any():
                observations, infos = envs.reset(options={"reset_mask": flags})
                for i in np.flatnonzero(flags):
                    singles[i].observation, singles[i].info = singles[i].env.reset()
                    singles[i].ended = False
                    assert observations[i] == singles[i].observation
                    assert info_of(infos, i) == singles[i].info
        assert ended >= 2 * NUM_ENVS
        for results, terminated, expected in kept:
            assert list(results[0]) == expected and results[2].tolist() == terminated, "an earlier result changed"
    finally:
        envs.close()


def test_the_guard_of_each_copy_refuses_what_it_refuses_of_a_single_one():
    class Wrong(Countdown):
        def step(self, action):
            step = super().step(action)
            return step if action == "fine" else step._replace(reward=0.5, info={"reward_components": {"a": 0.25}})

    envgym.register("test/WrongSum-v0", Wrong)
    envs = make_vec("test/WrongSum-v0", 2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(EpisodeOrderError, match="before reset"):
        envs.step(["fine", "fine"])
    envs.reset(seed=0)
    envs.step(["fine", "fine"])
    with pytest.raises(RewardError, match=r"components \{'a': 0\.25\} sum to 0\.25, but the reward is 0\.5"):
        envs.step(["fine", "wrong"])
    del gymnasium.registry["test/WrongSum-v0"]


def test_wrappers_and_limits_are_put_around_every_copy():
    envs = make_vec(IDS[0], 2, max_turns=2, wrappers=[lambda env: RewardScale(env, 2.0)], autoreset_mode="SameStep")
    envs.reset(seed=0)
    envs.step(["x", "x"])
    _, rewards, _, truncated, infos = envs.step(["x", "x"])
    assert rewards.tolist() == [-0.1, -0.1] and truncated.tolist() == [True, True]
    assert infos["final_info"]["truncation_reason"].tolist() == ["max_turns"] * 2
    with pytest.raises(ValueError, match="at least 1"):
        make_vec(IDS[0], 0)


@pytest.mark.parametrize("text", ["", "abc", "é\U0001f600\x00\n", "\ud800", "x" * SHARED_MEMORY_BYTES])
def test_any_text_up_to_the_limit_passes_through_shared_memory(text):
    space = TextSpace(["a"])
    memory = create_shared_memory(space, n=3)
    texts = read_from_shared_memory(space, memory, n=3)
    write_to_shared_memory(space, 1, "before, and longer", memory)
    write_to_shared_memory(space, 1, text, memory)
    write_to_shared_memory(space, 2, "last", memory)
    assert texts == ("", text, "last") and texts[1:] == (text, "last") and len(texts) == 3


def test_a_text_beyond_the_limit_is_an_error_that_names_the_way_out():
    space = TextSpace()
    memory = create_shared_memory(space, n=1)
    with pytest.raises(ValueError, match="shared_memory=False"):
        write_to_shared_memory(space, 0, "é" * (SHARED_MEMORY_BYTES // 2) + "x", memory)
    assert read_from_shared_memory(space, memory, n=1) == ("",)


class Long(Countdown):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "x" * (SHARED_MEMORY_BYTES + 1), {}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # Gymnasium logs what the worker raised as warnings, too
def test_a_long_observation_passes_without_shared_memory_and_is_refused_with_it():
    envs = gymnasium.vector.AsyncVectorEnv([Long], shared_memory=False)
    assert len(envs.reset(seed=0)[0][0]) == SHARED_MEMORY_BYTES + 1
    envs.close()
    envs = gymnasium.vector.AsyncVectorEnv([Long], shared_memory=True)
    with pytest.raises(ValueError, match="shared_memory=False"):
        envs.reset(seed=0)
    envs.close(terminate=True)
