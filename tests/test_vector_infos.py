"""Infos of many copies are Gymnasium's dictionary, whatever way they are looked at and however late."""

import copy
import json
import pickle

import gymnasium
import numpy as np
import pytest
from fakes import Countdown
from gymnasium.vector import AutoresetMode

from envgym.vector import TextVectorEnv, make_vec
from envgym.vector_infos import VectorInfos, batch_infos, frozen_infos

ENV_ID = "envgym/HigherLower-v0"
INFOS = (
    {"a": 1, "c": {"x": 0.5}, "role": "user"},
    {"b": [1, 2], "c": {"y": True}, "role": "tool"},
    {"a": 2, "b": [3, 4], "role": "user", "final_obs": "end"},
)


def merged(**infos):
    return infos


WAYS = {
    "dict": dict,
    "unpacked": lambda infos: {**infos},
    "arguments": lambda infos: merged(**infos),
    "items": lambda infos: dict(infos.items()),
    "keys": lambda infos: {key: infos[key] for key in infos.keys()},  # noqa: SIM118 - the method is the claim
    "iterated": lambda infos: {key: infos[key] for key in infos},
    "reversed": lambda infos: {key: infos[key] for key in reversed(infos)},
    "values": lambda infos: dict(zip(list(infos), infos.values(), strict=True)),
    "get": lambda infos: {key: infos.get(key) for key in infos},
    "popped": lambda infos: {key: infos.pop(key) for key in list(infos)},
    "popitem": lambda infos: dict(infos.popitem() for _ in range(len(infos))),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "method": lambda infos: infos.copy(),
    "pickled": lambda infos: pickle.loads(pickle.dumps(infos)),
    "left": lambda infos: infos | {},
    "right": lambda infos: {} | infos,
    "updated": lambda infos: (found := {}).update(infos) or found,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_looking_sees_all(way):
    found = WAYS[way](VectorInfos(INFOS))
    assert type(found) is dict
    np.testing.assert_equal(found, batch_infos(INFOS))


@pytest.mark.parametrize("first", ["a", "_a", "b", "c", "_c", "role", "final_obs", "_final_obs"])
def test_one_entry_is_that_of_the_whole_and_stays_the_same_object(first):
    infos, whole = VectorInfos(INFOS), batch_infos(INFOS)
    assert first in infos and "absent" not in infos and "_absent" not in infos and 7 not in infos
    entry = infos[first]
    np.testing.assert_equal(entry, whole[first])
    assert infos.get(first) is entry and infos.get("absent") is None and infos.get("absent", 3) == 3
    with pytest.raises(KeyError, match="absent"):
        infos["absent"]
    np.testing.assert_equal(dict(infos), whole)
    assert infos[first] is entry and len(infos) == len(whole)


def test_json_and_repr_see_all():
    infos, whole = VectorInfos(INFOS), batch_infos(INFOS)
    as_list = {"default": np.ndarray.tolist, "sort_keys": True}
    assert json.dumps(VectorInfos(INFOS), **as_list) == json.dumps(whole, **as_list)
    assert json.dumps(VectorInfos(INFOS), indent=1, **as_list) == json.dumps(whole, indent=1, **as_list)
    assert repr(infos) == repr(whole)


def test_it_can_be_written_to_as_any_dictionary():
    infos, mine = VectorInfos(INFOS), np.array([7, 8, 9])
    infos["a"], infos["episode"] = mine, {"r": mine}
    assert infos["_a"].tolist() == [True, False, True] and infos["a"] is mine
    assert dict(infos)["a"] is mine and dict(infos)["episode"] == {"r": mine}
    infos = VectorInfos(INFOS)
    infos |= {"new": 1}
    assert infos.setdefault("new", 2) == 1 and infos.setdefault("role") is infos["role"]
    del infos["role"]
    assert "role" not in infos and "_role" in infos and set(infos) == {*batch_infos(INFOS), "new"} - {"role"}
    infos = VectorInfos(INFOS)
    infos.clear()
    assert infos == {} and not infos and list(infos) == []


def test_it_equals_what_it_holds():
    single = [{"a": 1}]
    assert VectorInfos(single) == batch_infos(single) and batch_infos(single) == VectorInfos(single)
    assert VectorInfos(single) == VectorInfos(single) and VectorInfos(single) != {"a": 2} and VectorInfos([{}]) == {}


def test_a_key_that_looks_like_a_mask_is_what_gymnasium_makes_of_it():
    infos = ({"_a": 5, "a": 1}, {"a": 2})
    for key in ("_a", "a", "__a"):
        lazy = VectorInfos(infos)
        assert key in lazy
        np.testing.assert_equal(lazy[key], batch_infos(infos)[key])


def test_lists_and_large_integers_and_arrays_have_a_place():
    batched = batch_infos([{"l": [1, 2], "n": 2**70, "v": np.ones(2)}, {"l": [3, 4], "n": 1, "v": np.zeros(2)}])
    assert batched["l"].tolist() == [[1, 2], [3, 4]] and batched["l"].shape == (2,)
    assert batched["n"].tolist() == [2**70, 1]
    np.testing.assert_equal(batched["v"], [[1, 1], [0, 0]])


def test_copies_share_no_dictionary_with_the_environment():
    for info in (
        {"reward_components": {"a": 1}, "role": "user"},
        {"state": {"deep": {"n": 1}}, "reward_components": {}},
    ):
        before = copy.deepcopy(info)
        (kept,) = frozen_infos([info])
        info.get("reward_components", {})["a"] = 2
        info.get("state", {"deep": {}})["deep"]["n"] = 2
        info["role"] = "tool"
        assert kept == before


class Reusing(Countdown):
    """Returns the same dictionaries at every step and changes them."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.count, self.kept = 0, {"reward_components": {}, "inventory": {"coins": 0}}
        return observation, self.kept

    def step(self, action):
        step = super().step(action)
        self.count += 1
        self.kept["reward_components"]["reward"] = self.kept["count"] = self.count
        self.kept["inventory"]["coins"] = self.count
        return step._replace(reward=float(self.count), info=self.kept)


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_read_late_are_those_of_their_step(mode, checks):
    envs = TextVectorEnv([lambda: Reusing(length=4)] * 2, autoreset_mode=mode, checks=checks)
    envs.reset(seed=0)
    kept = [envs.step(["", ""])[4] for _ in range(4)]
    for turn, infos in enumerate(kept, start=1):
        infos = infos.get("final_info", infos)
        assert infos["count"].tolist() == [turn] * 2
        assert infos["inventory"]["coins"].tolist() == [turn] * 2
        assert infos["reward_components"]["reward"].tolist() == [turn] * 2


@pytest.mark.parametrize("mode", AutoresetMode)
def test_gymnasiums_vector_wrappers_work_on_them(mode):
    ours, theirs = (
        gymnasium.wrappers.vector.DictInfoToList(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs))
        for envs in (
            make_vec(ENV_ID, 4, autoreset_mode=mode),
            gymnasium.make_vec(ENV_ID, 4, "sync", vector_kwargs={"autoreset_mode": mode}),
        )
    )
    assert ours.reset(seed=3)[1] == theirs.reset(seed=3)[1]
    ours.action_space.seed(3)
    episodes, returns = 0, np.zeros(4)
    for _ in range(12):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        flags = mine[2] | mine[3]
        returns += mine[1]
        for info, ended, total in zip(mine[4], flags, returns, strict=True):
            episode = info.pop("episode", None)  # Gymnasium loses those of the others when some copies are reset
            assert (episode is not None) == ended
            episodes += bool(ended)
            assert not ended or episode["r"] == pytest.approx(total)
        returns[flags] = 0
        for info in other[4]:
            info.pop("episode", None)
        np.testing.assert_equal(mine[4], other[4])
        if mode is AutoresetMode.DISABLED and flags.any():
            for envs in (ours, theirs):
                envs.reset(options={"reset_mask": flags.copy()})
    assert episodes >= 4
