"""Vector environments lose nothing: every step, final observation and info is that of the single environment."""

import gymnasium
import numpy as np
import pytest
from fakes import Countdown
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import envgym
from envgym.errors import ContractError, EpisodeOrderError, RewardError
from envgym.spaces import SHARED_MEMORY_BYTES, TextSpace
from envgym.vector import TextVectorEnv, batch_infos, make_vec
from envgym.wrappers import REWARD_TOLERANCE, RewardScale

IDS = ["envgym/HigherLower-v0", "envgym/PointerChase-v0"]
NUM_ENVS, NUM_STEPS, SEED = 3, 40, 7


def make_text(env_id, mode):
    return make_vec(env_id, NUM_ENVS, autoreset_mode=mode)


def make_sync(env_id, mode):
    return gymnasium.make_vec(env_id, NUM_ENVS, "sync", vector_kwargs={"autoreset_mode": mode})


def make_async(shared_memory):
    def make(env_id, mode):
        options = {"autoreset_mode": mode, "shared_memory": shared_memory}
        return gymnasium.make_vec(env_id, NUM_ENVS, "async", vector_kwargs=options)

    return make


FORMS = {
    "envgym": make_text,
    "sync": make_sync,
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


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("env_id", IDS)
def test_infos_have_the_form_of_gymnasiums(env_id, mode):
    ours, theirs = make_text(env_id, mode), make_sync(env_id, mode)
    np.testing.assert_equal(ours.reset(seed=SEED), theirs.reset(seed=SEED))
    ours.action_space.seed(SEED)
    for _ in range(NUM_STEPS):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(mine, other)
        assert dtypes(mine[4]) == dtypes(other[4])
        flags = mine[2] | mine[3]
        if mode is AutoresetMode.DISABLED and flags.any():
            for envs in (ours, theirs):
                envs.reset(options={"reset_mask": flags})


def dtypes(infos):
    return {key: dtypes(value) if isinstance(value, dict) else value.dtype for key, value in infos.items()}


def test_numbers_of_different_types_are_not_cast_to_the_first():
    batched = batch_infos([{"a": 1, "b": "x"}, {"a": 0.5}, {"b": None, "c": {"d": True}}])
    assert batched["a"].tolist() == [1.0, 0.5, 0.0] and batched["_a"].tolist() == [True, True, False]
    assert batched["b"].tolist() == ["x", None, None] and batched["_b"].tolist() == [True, False, True]
    assert batched["c"]["d"].tolist() == [False, False, True] and batched["_c"].tolist() == [False, False, True]


def test_a_vector_environment_is_not_stepped_out_of_order():
    envs = make_text(IDS[0], AutoresetMode.DISABLED)
    with pytest.raises(EpisodeOrderError, match="before reset"):
        envs.step(["1"] * NUM_ENVS)
    envs.reset(seed=0)
    for _ in range(6):
        flags = envs.step(["0"] * NUM_ENVS)[2]
    assert flags.all()
    with pytest.raises(EpisodeOrderError, match=r"copies \[0, 1, 2\] had ended"):
        envs.step(["0"] * NUM_ENVS)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("reward", "components", "message"),
    [
        (0.5, {"a": 0.25}, r"copy 1: the reward components \{'a': 0\.25\} sum to 0\.25, but the reward is 0\.5"),
        (float("inf"), {"a": float("inf")}, "copy 1: a reward must be a finite number"),
        ("1", {}, r"copy 1: the reward is '1' \(str\); it must be a number"),
        (0.5, {"a": "0.5"}, "copy 1: the reward component 'a' is '0.5'"),
        (0.5, {7: 0.5}, "copy 1: info\\['reward_components'\\] has the key 7"),
        (float("nan"), {}, "copy 1: a reward must be a finite number"),
        (float("inf"), None, "copy 1: a reward must be a finite number"),
    ],
)
def test_a_wrong_reward_names_its_copy(mode, reward, components, message):
    class Wrong(Countdown):
        def step(self, action):
            step = super().step(action)
            info = {key: value for key, value in step.info.items() if key != "reward_components"}
            if components is not None:
                info["reward_components"] = components
            return step if action == "fine" else step._replace(reward=reward, info=info)

    for length in (1, 5):
        envs = TextVectorEnv([lambda length=length: Wrong(length=length)] * 2, autoreset_mode=mode)
        envs.reset(seed=0)
        with pytest.raises(RewardError, match=message):
            envs.step(["fine", "wrong"])


BROKEN = {
    "observation": (7, "copy 1: the observation is 7"),
    "surrogate": ("\ud800", "copy 1: the observation holds .* at character 0"),
    "terminated": (0, "copy 1: terminated is 0"),
    "truncated": (None, "copy 1: truncated is None"),
    "role": ("system", "copy 1: info\\['role'\\] is 'system'"),
    "success": ("yes", "copy 1: info\\['success'\\] is 'yes'"),
    "action_error": (3, "copy 1: info\\['action_error'\\] is 3"),
    "info": (None, "copy 1: info is None"),
    "tuple": (None, "copy 1: step returned .*; return"),
}


@pytest.mark.parametrize("part", BROKEN)
def test_what_the_guard_refuses_is_refused_with_the_number_of_the_copy(part):
    value, message = BROKEN[part]

    class Broken(Countdown):
        def step(self, action):
            step = super().step(action)
            if action == "fine":
                return step
            if part == "tuple":
                return step[:4]
            if part in ("role", "success", "action_error"):
                return step._replace(info={**step.info, part: value})
            return step._replace(**{"observation" if part == "surrogate" else part: value})

    envs = TextVectorEnv([Broken] * 2)
    envs.reset(seed=0)
    envs.step(["fine", "fine"])
    with pytest.raises(ContractError, match=message):
        envs.step(["fine", "broken"])


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("result", [(7, {}), ("", None), "text", ("", {"success": 1})])
def test_a_wrong_reset_names_its_copy(mode, result):
    class Broken(Countdown):
        def reset(self, *, seed=None, options=None):
            fine = super().reset(seed=seed)
            return fine if seed is not None and seed != 1 else result

    with pytest.raises(ContractError, match="copy 1: "):
        TextVectorEnv([Broken] * 2, autoreset_mode=mode).reset(seed=0)
    if mode is not AutoresetMode.DISABLED:
        envs = TextVectorEnv([lambda: Broken(length=1)] * 2, autoreset_mode=mode)
        envs.reset(seed=[5, 6])
        with pytest.raises(ContractError, match="copy 0: "):
            for _ in range(2):
                envs.step(["", ""])


def test_text_beyond_ascii_and_numbers_of_other_types_pass_the_checks():
    class Wide(Countdown):
        def step(self, action):
            step = super().step(action)
            return step._replace(
                observation="größer \U0001f600", reward=1, info={"reward_components": {"é": 1}, "state": {"n": [1]}}
            )

    envs = TextVectorEnv([Wide] * 2)
    envs.reset(seed=0)
    observations, rewards, _, _, infos = envs.step(["", ""])
    assert observations == ("größer \U0001f600",) * 2 and rewards.dtype == np.float64 and rewards.tolist() == [1, 1]
    assert infos["reward_components"]["é"].tolist() == [1, 1] and infos["state"]["n"].tolist() == [[1], [1]]


class Rounded(Countdown):
    """Pays 0.3 for 0.1 and 0.2, whose sum is 0.30000000000000004."""

    def step(self, action):
        step = super().step(action)
        return step._replace(reward=0.3, info={**step.info, "reward_components": {"a": 0.1, "b": 0.2}})


def test_rewards_may_differ_from_the_sums_of_their_components_by_rounding():
    envs = TextVectorEnv([Rounded] * 2)
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(["x", "y"])
    components = infos["reward_components"]
    gaps = np.abs(components["a"] + components["b"] - rewards)
    assert np.all(gaps > 0) and np.all(gaps <= REWARD_TOLERANCE)
    envs = make_vec(IDS[0], 3, wrappers=[lambda env: RewardScale(env, 0.1)], autoreset_mode="SameStep")
    envs.reset(seed=0)
    for guess in range(1, 65):
        _, rewards, _, _, _ = envs.step([str(guess), "x", str(65 - guess)])
        assert rewards[1] == pytest.approx(-0.005)


def test_a_mask_before_the_first_reset_starts_only_its_copies():
    envs = make_vec(IDS[0], 2)
    envs.reset(seed=0, options={"reset_mask": np.array([True, False])})
    with pytest.raises(EpisodeOrderError, match="before reset"):
        envs.step(["1", "1"])
    envs.reset(seed=0, options={"reset_mask": np.array([False, True])})
    envs.step(["1", "1"])


def test_reset_leaves_the_callers_options_as_they_are_and_names_a_wrong_mask():
    envs = make_vec(IDS[0], 2)
    options = {"reset_mask": np.array([True, True]), "other": 1}
    envs.reset(seed=0, options=options)
    assert set(options) == {"reset_mask", "other"}
    with pytest.raises(TypeError, match="array of bool"):
        envs.reset(options={"reset_mask": [True, True]})
    for mask in (np.array([True]), np.array([False, False])):
        with pytest.raises(ValueError, match=r"shape \(2,\) and one true"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="one seed for each of 2 copies, got 3"):
        envs.reset(seed=[1, 2, 3])


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
