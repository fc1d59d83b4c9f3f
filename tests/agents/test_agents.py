"""Agents by name, what they play, and what an environment without scripts is answered."""

import re

import numpy as np
import pytest

import envgym
from envgym import Step, TextEnv
from envgym.agent import Agent, Player
from envgym.agents import registry as agent_registry
from envgym.agents.registry import list_agents, make_agent
from envgym.errors import EnvGymError, ModelError, UnknownIdError


class Bare(TextEnv):
    """Has neither solver nor demonstrator."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "hello", {}

    def step(self, action):
        return Step.terminal(f"you said {action}", {"politeness": 0.5}, success=True)


def actions(agent, env, seed):
    """The actions of an episode."""
    observation, info = env.reset(seed=seed)
    player, played = agent.start(env, seed=seed), []
    while True:
        played.append(player.act(observation, info))
        observation, _, terminated, truncated, info = env.step(played[-1])
        if terminated or truncated:
            player.close()
            return played


@pytest.mark.parametrize("name", ["random", "demonstrator"])
def test_an_agent_plays_the_same_for_the_same_seed_only(name):
    env, agent = envgym.make("envgym/Upkeep-v0"), make_agent(name)
    assert agent.name == name
    assert actions(agent, env, 1) == actions(make_agent(name), env, 1)
    assert actions(agent, env, 1) != actions(agent, env, 2)


def test_two_random_players_do_not_disturb_each_other_or_the_environment():
    env, agent = envgym.make("envgym/Upkeep-v0"), make_agent("random")
    env.reset(seed=0)
    first, second = agent.start(env, seed=1), agent.start(env, seed=2)
    mixed = [(first.act("", {}), second.act("", {}))[0] for _ in range(5)]
    fresh = agent.start(env, seed=1)
    assert mixed == [fresh.act("", {}) for _ in range(5)]


def test_the_random_agent_does_not_share_the_randomness_of_the_environment():
    env, agent = envgym.make("envgym/HigherLower-v0"), make_agent("random")
    first_guesses = []
    for seed in range(200):
        env.reset(seed=seed)
        first_guesses.append(env.step(agent.start(env, seed=seed).act("1-64", {})).terminated)
    assert np.mean(first_guesses) < 0.1


def test_the_solver_agent_plays_through_wrappers():
    env = envgym.make("envgym/PointerChase-v0")
    assert actions(make_agent("solver"), env, 0)[-1].startswith("answer(")


@pytest.mark.parametrize("name", ["solver", "demonstrator"])
def test_an_environment_without_a_script_says_so(name):
    with pytest.raises(ValueError, match=f"Bare has no {name}; override its method `{name}`"):
        make_agent(name).start(Bare(), seed=0)


def test_a_person_sees_everything_and_answers():
    shown, asked = [], []

    def read(prompt):
        asked.append(prompt)
        return "hi"

    env = Bare()
    observation, info = env.reset(seed=0)
    player = make_agent("human", read=read, write=shown.append).start(env, seed=0)
    step = env.step(player.act(observation, info))
    player.final_observation_ids(step.observation, step.info)
    assert asked == ["> "]
    assert shown == ["hello", "reward +0.50 (politeness +0.50)", "you said hi", "solved"]


def test_a_person_is_told_the_task_and_the_tools():
    shown = []
    env = envgym.make("envgym/PointerChase-v0")
    env.reset(seed=0)
    make_agent("human", read=input, write=shown.append).start(env, seed=0)
    assert shown[0] == env.unwrapped.system_prompt
    assert "get(key): Looks up the record of a key." in shown


def test_the_built_in_agents_are_listed():
    assert {"random", "solver", "demonstrator", "human"} <= set(list_agents())


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownIdError, match=r"Unknown agent 'randm'\. Did you mean 'random'\?"):
        make_agent("randm")
    with pytest.raises(UnknownIdError, match=r"Known are: .*human"):
        make_agent("zzz")


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ((), "no config.json, no weights (*.safetensors), no tokenizer (tokenizer.json)"),
        (("config.json", "model.safetensors"), "no tokenizer (tokenizer.json)"),
        (("config.json",), "no weights (*.safetensors), no tokenizer (tokenizer.json)"),
        (("pytorch_model-1.bin",), "no config.json, no tokenizer (tokenizer.json)"),
    ],
)
def test_a_folder_without_an_agent_is_refused_with_what_it_lacks(tmp_path, files, lacks):
    for name in files:
        (tmp_path / name).write_text("{}")
    said = f"neither a run (it has no metrics.jsonl) nor a whole model folder (it has {lacks}); copy what is missing"
    with pytest.raises(ValueError, match=re.escape(said)):
        make_agent(tmp_path)


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer.model", "vocab.json"])
def test_any_tokenizer_makes_a_model_folder_whose_loader_says_what_else_is_missing(tmp_path, tokenizer):
    (tmp_path / tokenizer).write_text("{}")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        make_agent(tmp_path)


class Parrot(Agent):
    """Made from a folder or by a package."""

    def __init__(self, folder=None, *, word="a"):
        self.folder, self.word = folder, word

    def start(self, env, *, seed) -> Player:
        raise NotImplementedError


def test_a_folder_is_made_by_the_factory_of_its_mark(tmp_path, monkeypatch):
    (tmp_path / "parrot.json").write_text("{}")
    monkeypatch.setitem(agent_registry.FOLDERS, "parrot.json", f"{__name__}:Parrot")
    agent = make_agent(str(tmp_path), word="b")
    assert isinstance(agent, Parrot) and agent.folder == tmp_path and agent.word == "b"


def test_agents_of_installed_packages_are_found_and_broken_ones_named(tmp_path, monkeypatch):
    info = tmp_path / "parrots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[envgym.agents]\nparrot = {__name__}:Parrot\ndead = no_such_module:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_agent("parrot", word="c").word == "c"
    assert {"parrot", "dead"} <= set(list_agents())
    with pytest.raises(EnvGymError, match="agent 'dead' of package 'parrots' could not be loaded"):
        make_agent("dead")
