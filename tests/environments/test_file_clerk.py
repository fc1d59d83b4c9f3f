"""The file clerk: operations of the tree, each job by hand, and rewards that telescope."""

import numpy as np
import pytest

from envgym.environments.file_clerk import FileClerk
from envgym.environments.file_clerk.jobs import JOBS, draw_job
from envgym.environments.file_clerk.tree import FileError, FileTree
from envgym.tools import format_call

BEFORE = {"/a/one.txt": "first", "/a/two.txt": "second", "/b/keep.md": "kept"}


def start(expected, before=BEFORE, **kwargs):
    """An episode with these files, and these there must be."""
    env = FileClerk(**kwargs)
    env.reset(seed=0)
    env._before, env._expected, env._tree = dict(before), dict(expected), FileTree(before)
    return env


def call(env, name, **arguments):
    return env.step(format_call(name, arguments, env.call_format))


def test_operations_of_a_tree():
    tree = FileTree(BEFORE)
    assert tree.listing("/") == ["a/", "b/"] and tree.listing("a") == ["one.txt", "two.txt"]
    assert tree.move("/a/one.txt", "/b") == "/b/one.txt" and tree.read("b/one.txt") == "first"
    assert tree.move("/b/one.txt", "/b/three.txt") == "/b/three.txt" and "/b/one.txt" not in tree.files
    assert tree.copy("/b/three.txt", "/a") == "/a/three.txt" and tree.read("/b/three.txt") == "first"
    assert tree.find("*.txt") == ["/a/three.txt", "/a/two.txt", "/b/three.txt"]
    assert tree.find("t?o.*") == ["/a/two.txt"]
    assert tree.grep("ir") == ["/a/three.txt: first", "/b/three.txt: first"]
    assert tree.make_folder("/c/d") == "/c/d" and tree.listing("/c") == ["d/"]
    assert tree.move("/a", "/c") == "/c/a" and tree.read("/c/a/two.txt") == "second" and "/a" not in tree.folders
    assert tree.remove("/c", recursive=True) == "/c" and tree.files == {"/b/keep.md": "kept", "/b/three.txt": "first"}
    assert tree.write("/b/new.txt", "text") == "/b/new.txt"


@pytest.mark.parametrize(
    ("path", "normal"),
    [("a/one.txt", "/a/one.txt"), ("/a/../b/./keep.md", "/b/keep.md"), ("../../..", "/"), ("", "/"), ("//a//", "/a")],
)
def test_paths_have_one_normal_form_and_never_leave_the_root(path, normal):
    assert FileTree(BEFORE).resolve(path) == normal


@pytest.mark.parametrize(
    "operation",
    [
        lambda tree: tree.read("/a"),
        lambda tree: tree.read("../../etc/passwd"),
        lambda tree: tree.listing("/a/one.txt"),
        lambda tree: tree.write("/nowhere/x", "text"),
        lambda tree: tree.write("/a", "text"),
        lambda tree: tree.write("/a/x", "x" * 4001),
        lambda tree: tree.write("/a/" + "x" * 41, "text"),
        lambda tree: tree.write("/a/\x00", "text"),
        lambda tree: tree.move("/a", "/a/b"),
        lambda tree: tree.move("/none", "/b"),
        lambda tree: tree.move("/a/one.txt", "/nowhere/x"),
        lambda tree: tree.copy("/a", "/b"),
        lambda tree: tree.remove("/"),
        lambda tree: tree.remove("/a"),
        lambda tree: tree.remove("/a/none.txt"),
        lambda tree: tree.make_folder("/a/one.txt"),
        lambda tree: tree.make_folder("/a/one.txt/deeper"),
        lambda tree: tree.make_folder("/1/2/3/4/5/6/7/8/9"),
        lambda tree: tree.find("*" * 41),
        lambda tree: tree.grep(""),
    ],
)
def test_an_operation_that_fails_changes_nothing(operation):
    tree = FileTree(BEFORE)
    with pytest.raises(FileError):
        operation(tree)
    assert tree.files == BEFORE and tree.folders == {"/", "/a", "/b"}


def test_a_tree_does_not_grow_without_end():
    tree = FileTree({})
    with pytest.raises(FileError, match="200 files"):
        for i in range(300):
            tree.write(f"/{i}", "")
    with pytest.raises(FileError, match="200 folders"):
        for i in range(300):
            tree.make_folder(f"/f{i}")


@pytest.mark.parametrize(
    ("index", "parameters", "before", "after"),
    [
        (
            0,
            {"place": "/in", "first": "txt", "second": "csv"},
            {"/in/a.txt": "1", "/in/b.csv": "2", "/in/c.log": "3", "/x/d.txt": "4"},
            {"/txt/a.txt": "1", "/csv/b.csv": "2", "/in/c.log": "3", "/x/d.txt": "4"},
        ),
        (
            1,
            {"kind": "tmp"},
            {"/a/x.tmp": "1", "/b/x.tmp.txt": "2", "/b/tmp.md": "3"},
            {"/b/x.tmp.txt": "2", "/b/tmp.md": "3"},
        ),
        (
            2,
            {"place": "/photos"},
            {"/photos/a.jpg": "taken in 2001", "/x/b.jpg": "taken in 1999"},
            {"/photos/2001-a.jpg": "taken in 2001", "/x/b.jpg": "taken in 1999"},
        ),
        (
            3,
            {"place": "/invoices", "target": "/desk/total.txt"},
            {"/invoices/a.txt": "amount 10", "/invoices/b.txt": "amount 32"},
            {"/invoices/a.txt": "amount 10", "/invoices/b.txt": "amount 32", "/desk/total.txt": "42"},
        ),
        (
            4,
            {"topic": "harbour"},
            {"/a/x.txt": "so\nabout the harbour", "/b/y.txt": "about the tunnel"},
            {"/harbour/x.txt": "so\nabout the harbour", "/b/y.txt": "about the tunnel"},
        ),
        (
            5,
            {"place": "/records"},
            {"/records/c.txt": "1", "/records/a.txt": "1", "/records/b.txt": "2", "/x/d.txt": "1"},
            {"/records/a.txt": "1", "/records/b.txt": "2", "/x/d.txt": "1"},
        ),
        (
            6,
            {"place": "/config", "target": "/backup"},
            {"/config/a.ini": "1", "/x/b.ini": "2"},
            {"/config/a.ini": "1", "/x/b.ini": "2", "/backup/a.ini": "1"},
        ),
        (
            7,
            {"old": "north", "new": "east"},
            {"/a/x.conf": "name north\nserver north", "/a/y.conf": "server west"},
            {"/a/x.conf": "name north\nserver east", "/a/y.conf": "server west"},
        ),
        (
            8,
            {"place": "/reports", "year": "2015", "target": "/archive"},
            {"/reports/2014-a.txt": "1", "/reports/2015-b.txt": "2"},
            {"/archive/2014-a.txt": "1", "/reports/2015-b.txt": "2"},
        ),
        (
            9,
            {"place": "/parts", "target": "/parts/whole.txt"},
            {"/parts/part2.txt": "b", "/parts/part1.txt": "a", "/x/c.md": "c"},
            {"/parts/whole.txt": "a\nb", "/x/c.md": "c"},
        ),
    ],
)
def test_what_each_job_asks_for(index, parameters, before, after):
    assert JOBS[index].work(before, parameters) == after
    assert JOBS[index].read(JOBS[index].text.format(**parameters)) == parameters


def test_jobs_ask_for_a_change_keep_something_and_read_back():
    rng, seen = np.random.default_rng(0), set()
    for _ in range(400):
        text, before, after = draw_job(rng)
        kinds = [job for job in JOBS if job.read(text) is not None]
        assert len(kinds) == 1 and before != after and before.items() & after.items()
        seen.add(kinds[0])
    assert seen == set(JOBS)


def test_progress_is_the_share_of_changes_made():
    env = start({"/a/one.txt": "new", "/b/two.txt": "second", "/b/keep.md": "kept"})
    assert call(env, "ls", path="/a").info["reward_components"] == {"progress": 0.0}
    step = call(env, "mv", source="/a/two.txt", target="/b")
    assert (
        step.info["reward_components"] == {"progress": pytest.approx(2 / 3)}
        and step.observation == "moved to /b/two.txt"
    )
    assert step.info["role"] == "tool" and step.info["success"] is False
    back = call(env, "mv", source="/b/two.txt", target="/a")
    assert back.info["reward_components"] == {"progress": pytest.approx(-2 / 3)}
    call(env, "mv", source="/a/two.txt", target="/b")
    written = call(env, "write", path="/a/one.txt", content="new\n")
    assert written.info["reward_components"] == {"progress": pytest.approx(1 / 3)}
    step = env.step("finish()")
    assert step.terminated and step.info["success"] is True and step.info["reward_components"] == {"finish": 1.0}


def test_destroying_what_must_be_kept_costs_until_it_is_restored():
    env = start({"/a/two.txt": "second", "/b/keep.md": "kept"})
    assert call(env, "rm", path="/b/keep.md").info["reward_components"] == {"progress": 0.0, "kept": -0.1}
    restored = call(env, "write", path="/b/keep.md", content="kept").info["reward_components"]
    assert restored == {"progress": 0.0, "kept": pytest.approx(0.1)}
    everything = call(env, "rm", path="/a", recursive=True).info["reward_components"]
    assert everything == {"progress": 1.0, "kept": -0.1}
    step = env.step("finish()")
    assert step.terminated and step.info["success"] is False and step.info["reward_components"] == {"finish": 0.0}


def test_files_that_nobody_wants_are_clutter():
    env = start({"/a/two.txt": "second", "/b/keep.md": "kept"})
    assert call(env, "cp", source="/a/two.txt", target="/b").info["reward_components"] == {
        "progress": 0.0,
        "clutter": -0.02,
    }
    call(env, "rm", path="/a/one.txt")
    assert env.step("finish()").info["success"] is False


def test_folders_do_not_matter():
    env = start({"/a/two.txt": "second", "/b/keep.md": "kept"})
    call(env, "mkdir", path="/c/d"), call(env, "rm", path="/a/one.txt")
    assert env.step("finish()").info["success"] is True


def test_rewards_telescope_whatever_is_done():
    for seed in range(20):
        env = FileClerk()
        env.reset(seed=seed)
        env.action_space.seed(seed)
        first, total = env._potentials(), 0.0
        for _ in range(60):
            action = env.action_space.sample()
            if "finish" not in action:
                total += env.step(action).reward
        assert total == pytest.approx(sum(env._potentials().values()) - sum(first.values()))


def test_an_error_is_an_observation_and_changes_nothing():
    env = start({"/b/keep.md": "kept"})
    step = call(env, "cat", path="../../../../etc/passwd")
    assert step.observation == "/etc/passwd: no such file" == step.info["action_error"]
    assert step.reward == 0.0 and not step.terminated
