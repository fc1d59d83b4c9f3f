"""The recorder writes each episode as run_episode would record its text, and survives crashes and other writers."""

import dataclasses
import multiprocessing

import pytest
from fakes import Countdown

import envgym
from envgym import Trajectory
from envgym.rollout.episode import run_episode
from envgym.wrappers import RecordTrajectory, append_line


def read(path):
    return [Trajectory.from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def untimed(trajectory):
    turns = tuple(dataclasses.replace(turn, generate_s=0.0, step_s=0.0) for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=turns)


@pytest.mark.parametrize("env_id", ["envgym/HigherLower-v0", "envgym/PointerChase-v0"])
def test_the_record_is_that_of_run_episode(env_id, tmp_path):
    path = tmp_path / "made" / "episodes.jsonl"
    env = RecordTrajectory(envgym.make(env_id), path)
    expected = [run_episode(env, lambda observation: "get(b4)", seed=seed, options={"k": 1}) for seed in range(3)]
    assert [untimed(record) for record in read(path)] == [untimed(trajectory) for trajectory in expected]
    assert all(turn.step_s > 0 for record in read(path) for turn in record.turns)


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both"])
def test_every_ending_is_recorded_as_run_episode_does(ending, tmp_path):
    env = RecordTrajectory(Countdown(length=2, ending=ending, role="tool"), tmp_path / "a.jsonl")
    expected = run_episode(env, lambda observation: "é\x00\u2028", seed=3)
    assert untimed(read(tmp_path / "a.jsonl")[0]) == untimed(expected)


def test_an_episode_left_before_its_end_says_so(tmp_path):
    env = RecordTrajectory(Countdown(length=3), tmp_path / "a.jsonl")
    for _ in range(2):
        env.reset(seed=1)
        env.step("x")
    env.close()
    env.close()
    records = read(tmp_path / "a.jsonl")
    assert [record.failure for record in records] == ["left before its end by reset", "left before its end by close"]
    assert [len(record.turns) for record in records] == [1, 1]


def test_an_episode_without_a_turn_leaves_no_record(tmp_path):
    env = RecordTrajectory(Countdown(), tmp_path / "a.jsonl")
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    assert not (tmp_path / "a.jsonl").exists()


def test_a_step_or_reset_that_raises_is_recorded_and_raised(tmp_path):
    env = RecordTrajectory(Countdown(fail_step=lambda seed, turn: turn == 2), tmp_path / "a.jsonl")
    env.reset(seed=1)
    env.step("x")
    with pytest.raises(OSError, match="died"):
        env.step("y")
    env.close()
    (record,) = read(tmp_path / "a.jsonl")
    assert record.failure == "OSError: the sandbox died"
    assert [(turn.action, turn.executed) for turn in record.turns] == [("x", True), ("y", False)]
    broken = RecordTrajectory(Countdown(fail_reset=lambda seed: True), tmp_path / "b.jsonl")
    with pytest.raises(OSError):
        broken.reset(seed=4)
    assert [(r.seed, r.failure, r.turns) for r in read(tmp_path / "b.jsonl")] == [
        (4, "OSError: the sandbox did not start", ())
    ]


def test_an_unseeded_episode_is_recorded_with_the_seed_of_its_stream(tmp_path):
    env = RecordTrajectory(envgym.make("envgym/HigherLower-v0"), tmp_path / "a.jsonl")
    env.reset()
    while not env.step("1").terminated:
        pass
    (record,) = read(tmp_path / "a.jsonl")
    again = run_episode("envgym/HigherLower-v0", lambda observation: "1", seed=record.seed)
    assert untimed(again) == untimed(record)


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("torn", ["x", "y" * 200_000])
def test_a_torn_line_is_removed_before_the_next(before, torn, tmp_path):
    path = tmp_path / "a.jsonl"
    whole = "".join(f"{'z' * 70_000}{i}\n" for i in range(before))
    path.write_text(whole + torn)
    append_line(path, "next", sync=True)
    assert path.read_text() == f"{whole}next\n"


def _write_many(path, letter):
    for _ in range(50):
        append_line(path, letter * 20_000)


def test_lines_of_several_processes_stay_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, letter)) for letter in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(letter * 20_000 for letter in "abc" for _ in range(50))
