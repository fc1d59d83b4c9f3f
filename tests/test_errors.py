"""Suggestions are near, or there are none."""

import pytest

import envgym
from envgym.errors import nearest

AGENTS = ["demonstrator", "human", "openai", "random", "solver"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("envgym/HigerLower-v0", "envgym/HigherLower-v0"),
        ("envgym/higherlower-v0", "envgym/HigherLower-v0"),
        ("HigherLower", "envgym/HigherLower-v0"),
        ("envgym/Taxi-v3", "envgym/Taxi-v0"),
        ("envgyn/Taxi-v0", "envgym/Taxi-v0"),
        ("envgym/Foo-v0", None),
        ("envgym/Chess-v0", None),
        ("mine/X-v0", None),
        ("", None),
    ],
)
def test_of_an_environment_the_name_decides(name, meant):
    assert nearest(name, envgym.list_environments("builtin")) == meant


@pytest.mark.parametrize(
    ("name", "meant"), [("randon", "random"), ("Solver", "solver"), ("gpt-4", None), ("zzz", None), ("o", None)]
)
def test_of_an_agent(name, meant):
    assert nearest(name, AGENTS) == meant


def test_of_two_that_differ_only_in_namespace_or_version_the_nearer_is_meant():
    known = ["a/Game-v0", "a/Game-v1", "bc/Game-v0"]
    assert nearest("bd/Game-v0", known) == "bc/Game-v0"
    assert nearest("a/Gane-v1", known) == "a/Game-v1"
