"""`envgym info`, `list` and `check`: everything an author wants to know, and an exit status a script can use."""

import dataclasses
import json

import gymnasium
import pytest

import envgym
from envgym import Step, TextEnv, TruncationReason
from envgym.cli import main
from envgym.cli.catalogue import MOST_TURNS, summary, tags
from envgym.cli.info import environment_info, listing


class Echo(TextEnv):
    """Repeat after me. Never ends by itself.

    A second paragraph.
    """

    system_prompt = "Repeat."
    max_turns = 3
    terminal_limits = frozenset({TruncationReason.MAX_TURNS})

    def __init__(self, words: int = 2) -> None:
        self.words = words

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say", {}

    def step(self, action):
        return Step.running(action, {"echo": 1.0, "noise": -0.25})


class Endless(Echo):
    max_turns = None


class Nondeterministic(Echo):
    """Counts over all instances."""

    count = 0

    def step(self, action):
        Nondeterministic.count += 1
        return Step.running(str(Nondeterministic.count))


@pytest.fixture
def echo():
    envgym.register("test/Echo-v0", Echo, tags=["parrot", "loud"])
    envgym.register("test/EchoEndless-v0", Endless)
    envgym.register("test/EchoWrong-v0", Nondeterministic, tags=["parrot"])
    yield "test/Echo-v0"
    for name in ("Echo", "EchoEndless", "EchoWrong"):
        del gymnasium.registry[f"test/{name}-v0"]


def test_info_of_an_environment_with_tools_has_their_schemas_and_the_solvers_episode(capsys):
    assert main(["info", "envgym/PointerChase-v0", "--seed", "3"]) == 0
    page = capsys.readouterr().out
    schemas = [schema["function"]["parameters"] for schema in envgym.make("envgym/PointerChase-v0").unwrapped.tools]
    for part in (
        "envgym/PointerChase-v0: follow a chain of records with two tools, then answer the value at its end\n",
        "tags: builtin, tools\n",
        "turns: at most 8, then truncated\n",
        "System prompt\n  get(key) to the value, then answer(value).\n",
        "  distractors = 4\n",
        "  get(key)  Looks up the record of a key.\n",
        *(f"      {json.dumps(schema)}\n" for schema in schemas),
        "Sample episode (solver)\nenvgym/PointerChase-v0, seed 3\n",
        "  terminated, solved, return +1.",
    ):
        assert part in page, part


def test_reward_components_are_those_the_players_earn():
    info = environment_info("envgym/HigherLower-v0")
    assert info.players == ("solver", "demonstrator", "random")
    assert info.components["win"] == (1.0, 1.0)
    low, high = info.components["information"]
    assert 0 < low < high == pytest.approx(1.0, abs=1e-6)


def test_info_as_json_is_the_whole_record(capsys):
    assert main(["info", "envgym/HigherLower-v0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads(json.dumps(dataclasses.asdict(environment_info("envgym/HigherLower-v0")))) | {
        "sample": record["sample"]
    }
    assert [turn["action"] for turn in record["sample"]["turns"]][:2] == ["32", "48"]


def test_without_scripted_players_the_docstring_and_random_actions_serve(echo):
    info = environment_info(echo)
    assert info.summary == "Repeat after me"
    assert info.description == "Repeat after me. Never ends by itself.\n\nA second paragraph."
    assert (info.players, info.arguments, info.tags) == (("random",), {"words": "2"}, ("parrot", "loud"))
    assert info.components == {"echo": (3.0, 3.0), "noise": (-0.75, -0.75)}
    assert "turns: at most 3, then terminated" in str(info)
    assert info.sample.terminated and len(info.sample.turns) == 3


def test_an_environment_without_an_end_is_shown_too(echo):
    info = environment_info("test/EchoEndless-v0")
    assert info.max_turns is None and len(info.sample.turns) == MOST_TURNS
    assert "turns: no limit outside the task" in str(info)
    assert info.summary == "" and info.description == ""


def test_the_list_has_tags_and_a_line_for_each(echo, capsys):
    assert main(["list", "--tag", "parrot"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "test/Echo-v0       parrot, loud  Repeat after me",
        "test/EchoWrong-v0  parrot        Counts over all instances",
    ]
    assert [line.split()[0] for line in listing()] == envgym.list_environments()


def test_an_unknown_tag_or_id_is_answered_with_those_there_are(echo, capsys):
    assert main(["list", "--tag", "parot"]) == 2
    problem, _, named = capsys.readouterr().err.strip().partition("; tags are: ")
    assert problem == "envgym: no environment has the tag 'parot'"
    # Every tag there is, no more and no less: other tests may have registered environments with tags of their own.
    known = {tag for env_id in envgym.list_environments() for tag in tags(envgym.spec(env_id))}
    assert named == ", ".join(sorted(known)) and {"bridge", "builtin", "loud", "parrot"} <= known
    assert main(["info", "envgym/Wordl-v0"]) == 2
    assert "Did you mean 'envgym/Wordle-v0'?" in capsys.readouterr().err


def test_check_prints_the_report_and_fails_with_status_one(echo, capsys):
    assert main(["check", "envgym/HigherLower-v0"]) == 0
    assert capsys.readouterr().out == "envgym/HigherLower-v0: 19 of 19 checks passed\n"
    assert main(["check", "envgym/HigherLower-v0", "test/EchoWrong-v0"]) == 1
    assert "  seeding: " in capsys.readouterr().out
    assert main(["check", "test/Nowhere-v0"]) == 2


def test_a_summary_of_envgyms_own_imports_nothing(monkeypatch):
    def refuse(entry):
        raise AssertionError(f"{entry.id} was imported")

    monkeypatch.setattr("envgym.cli.catalogue.creator_of", refuse)
    assert summary(envgym.spec("envgym/Taxi-v0")) == "fetch a passenger, bring them to their destination"
    assert summary(envgym.spec("envgym/Tau2Retail-v0")) == "customer service of a shop, after tau2-bench"
