"""Suggestions are near, or there are none; what is written is whole, or is not there."""

import pytest

import envgym
from envgym.errors import nearest, written_whole

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


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_written_takes_its_name_once_it_is_whole(tmp_path, kind):
    path = tmp_path / "x"

    def write(text, fails=False):
        with written_whole(path) as partial:
            inner = partial
            if kind == "folder":
                partial.mkdir()
                inner = partial / "part"
            inner.write_text(text)
            if fails:
                raise OSError("full")

    def read():
        return (path / "part" if kind == "folder" else path).read_text()

    (tmp_path / ".x.partial").mkdir()  # left by a process that was killed
    write("old")
    with pytest.raises(OSError, match="full"):
        write("new", fails=True)
    assert read() == "old"
    write("new")
    assert read() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
