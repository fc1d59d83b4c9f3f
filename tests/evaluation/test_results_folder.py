"""Results on disk: written as episodes end, resumed after any interruption, guarded against other settings."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from fakes import registered

from envgym import Trajectory, TruncationReason, Turn, evaluate
from envgym.agent import Agent, Player
from envgym.evaluation.metrics import clustered_standard_error
from envgym.evaluation.results import EnvironmentReport, TokenUsage, summarise
from envgym.evaluation.results_folder import EpisodeKey, EpisodeRecord, ResultsFolder, read_results
from envgym.rollout.episode import FunctionAgent

HERE = Path(__file__).parent


class Dice(Agent):
    """Says a random number."""

    def __init__(self, name="dice", sides=6):
        self.name, self.sides = name, sides

    def settings(self):
        return {"sides": self.sides}

    def start(self, env, *, seed):
        rng, sides = random.Random(seed), self.sides

        class Roll(Player):
            def act(self, observation, info):
                return str(rng.randrange(sides * 1000))

        return Roll()


def timeless(trajectory):
    turns = tuple(dataclasses.replace(turn, generate_s=0.0, step_s=0.0) for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=turns)


def contents(folder):
    return {key: timeless(record.trajectory) for key, record in read_results(folder).records.items()}


def lines(folder):
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


# -- the report ------------------------------------------------------------------------------------------------------


def episode(env_id, seed, reward=0.0, *, success=None, reason=None, failure=None, ids=((), ())):
    turn = Turn(
        "o", "a", reward, {"gain": reward}, observation_ids=ids[0], action_ids=ids[1], generate_s=1.0, step_s=0.5
    )
    return Trajectory(
        env_id,
        seed,
        (turn, turn),
        terminated=reason is None and failure is None,
        truncated=reason is not None,
        truncation_reason=reason,
        success=success,
        failure=failure,
    )


def test_pass_at_k_and_pass_hat_k_by_hand():
    tasks = {1: [True, False, False], 2: [True, True, True], 3: [False, False], 4: []}
    played = [episode("t/E-v0", seed, success=s) for seed, attempts in tasks.items() for s in attempts]
    played.append(episode("t/E-v0", 3, failure="OSError: gone"))
    played.append(episode("t/E-v0", 4, failure="OSError: gone"))
    report = summarise("t/E-v0", "me", played)
    # Task 3 has two finished attempts, so it says nothing about three; task 4 has none.
    assert report.pass_at_k == {1: pytest.approx(4 / 9), 2: pytest.approx((2 / 3 + 1 + 0) / 3), 3: 1.0}
    assert report.pass_hat_k == {1: pytest.approx(4 / 9), 2: pytest.approx(1 / 3), 3: 0.5}
    assert report.pass_at_k_error[2] == pytest.approx(clustered_standard_error([2 / 3, 1, 0], "abc"))
    assert report.pass_hat_k_error[3] == pytest.approx(clustered_standard_error([0, 1], "ab"))
    assert (report.tasks, report.judged, report.episodes, report.failed) == (3, 8, 8, 2)
    assert report.failed_share == 0.2 and report.failures == {"OSError: gone": 2}
    assert report.metrics()["pass@2"] == report.pass_at_k[2] and report.metrics()["pass^3"] == 0.5
    assert "pass@1" not in report.metrics()


def test_endings_components_tokens_and_seconds_by_hand():
    report = summarise(
        "t/E-v0",
        "me",
        [
            episode("t/E-v0", 1, 1.0, ids=((1, 2, 3), (4, 5))),
            episode("t/E-v0", 2, 0.0, reason=TruncationReason.MAX_TURNS),
            episode("t/E-v0", 3, 0.5, reason=TruncationReason.CONTEXT_OVERFLOW),
            episode("t/E-v0", 4, 0.5),
        ],
        [None, TokenUsage(40, 8), None, TokenUsage(4, 4)],
    )
    assert (report.terminated, report.truncated) == (0.5, 0.5)
    assert report.endings == {"terminated": 0.5, "max_turns": 0.25, "context_overflow": 0.25}
    assert report.components == {"gain": 1.0}
    assert report.component_errors == {"gain": pytest.approx(clustered_standard_error([2, 0, 1, 1], "abcd"))}
    assert report.prompt_tokens == (3 + 8 + 40 + 0 + 4) / 4  # the second prompt holds the first turn and three more
    assert report.action_tokens == (4 + 8 + 0 + 4) / 4
    assert report.seconds == 3.0


def test_a_report_survives_json():
    report = summarise("t/E-v0", "me", [episode("t/E-v0", s, success=bool(s)) for s in (0, 0, 1, 1)])
    assert EnvironmentReport(**json.loads(json.dumps(report.as_dict()))) == report


def test_the_overall_report_is_over_all_episodes_clustered_by_environment_and_seed():
    ids = [registered("OverallA", kwargs={"length": 1}), registered("OverallB", kwargs={"length": 3})]
    evaluation = evaluate(Dice(), ids, episodes=4)
    assert list(evaluation) == ids
    overall = evaluation.overall
    assert (overall.env_id, overall.episodes, overall.tasks, overall.turns) == ("overall", 8, 8, 2.0)
    assert overall.mean_return == pytest.approx((0.5 + 1.5) / 2)
    assert overall.return_error == pytest.approx(clustered_standard_error([0.5] * 4 + [1.5] * 4, range(8)))


# -- the folder ------------------------------------------------------------------------------------------------------


def test_every_episode_is_on_disk_when_it_has_ended(tmp_path):
    env_id, counts = registered("OnDisk"), []
    evaluate(
        Dice(),
        env_id,
        episodes=3,
        attempts=2,
        seed=7,
        results=tmp_path / "r",
        on_episode=lambda _: counts.append(len(lines(tmp_path / "r"))),
    )
    assert counts == [1, 2, 3, 4, 5, 6]
    keys = {(line["env_id"], line["seed"], line["attempt"]) for line in lines(tmp_path / "r")}
    assert keys == {(env_id, seed, attempt) for seed in (7, 8, 9) for attempt in (0, 1)}


def test_a_record_round_trips():
    record = EpisodeRecord(EpisodeKey("t/E-v0", 3, 1), episode("t/E-v0", 3, 0.1, success=True), TokenUsage(5, 6))
    assert EpisodeRecord.from_json(record.to_json()) == record
    for line in ("", "[]", "{}", record.to_json()[:-1], record.to_json().replace('"turns"', '"turn"')):
        with pytest.raises(ValueError, match="not an episode record"):
            EpisodeRecord.from_json(line)


def test_a_second_call_plays_nothing_and_reports_the_same(tmp_path):
    starts = []

    class Counted(Dice):
        def start(self, env, *, seed):
            starts.append(seed)
            return super().start(env, seed=seed)

    env_id, seen = registered("Twice"), []
    first = evaluate(Counted(), env_id, episodes=4, attempts=2, results=tmp_path)
    second = evaluate(Counted(), env_id, episodes=4, attempts=2, results=tmp_path, on_episode=seen.append)
    assert len(starts) == 8 and len(set(starts)) == 8
    assert len(lines(tmp_path)) == 8 and len(seen) == 8
    assert first == second and first.overall == second.overall


def test_more_tasks_attempts_and_environments_can_be_added_later(tmp_path):
    ids = [registered("MoreA"), registered("MoreB")]
    evaluate(Dice(), ids[0], episodes=2, results=tmp_path / "a")
    grown = evaluate(Dice(), ids, episodes=4, attempts=3, results=tmp_path / "a")
    at_once = evaluate(Dice(), ids, episodes=4, attempts=3, results=tmp_path / "b")
    assert grown == at_once and len(lines(tmp_path / "a")) == 24
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    fewer = evaluate(Dice(), ids[0], episodes=2, results=tmp_path / "a")
    assert fewer[ids[0]].episodes == 2


def test_failed_episodes_are_recorded_not_scored_and_played_again(tmp_path):
    broken = {2, 3}
    env_id = registered("Mended", kwargs={"fail_step": lambda seed, turn: seed in broken and turn == 2})
    first = evaluate(Dice(), env_id, episodes=5, results=tmp_path)[env_id]
    assert (first.episodes, first.failed, first.success, first.mean_return) == (3, 2, 1.0, 1.5)
    assert Counter(line["trajectory"]["failure"] is None for line in lines(tmp_path)) == {True: 3, False: 2}
    broken.remove(3)
    second = evaluate(Dice(), env_id, episodes=5, results=tmp_path)[env_id]
    assert (second.episodes, second.failed) == (4, 1)
    assert len(lines(tmp_path)) == 7
    broken.clear()
    third = evaluate(Dice(), env_id, episodes=5, results=tmp_path)[env_id]
    assert (third.episodes, third.failed, third.failures) == (5, 0, {})
    finished = Counter(line["seed"] for line in lines(tmp_path) if line["trajectory"]["failure"] is None)
    assert finished == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("cut", [1, 2, 100, 10_000])
def test_a_cut_last_line_is_dropped_or_completed(tmp_path, cut):
    env_id = registered("Cut")
    whole = evaluate(Dice(), env_id, episodes=4, concurrency=1, results=tmp_path)
    file = tmp_path / "episodes.jsonl"
    last = len(file.read_bytes().splitlines(keepends=True)[-1])
    file.write_bytes(file.read_bytes()[: -min(cut, last - 1)])
    # Without its newline alone the line is whole, and its episode is not lost.
    assert len(read_results(tmp_path).records) == (4 if cut == 1 else 3)
    assert evaluate(Dice(), env_id, episodes=4, concurrency=1, results=tmp_path) == whole
    assert len(lines(tmp_path)) == 4


def test_damage_that_no_interruption_makes_is_named(tmp_path):
    env_id = registered("Damaged")
    evaluate(Dice(), env_id, episodes=3, concurrency=1, results=tmp_path)
    file = tmp_path / "episodes.jsonl"
    good = file.read_text()
    file.write_text(good.replace('"seed":1', '"seed":', 1))
    with pytest.raises(ValueError, match=r"episodes\.jsonl' is damaged in line 2"):
        evaluate(Dice(), env_id, episodes=3, results=tmp_path)
    file.write_text(good + good.splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=r"damaged in line 4: .*finished before"):
        evaluate(Dice(), env_id, episodes=3, results=tmp_path)
    file.write_text(good)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings\.json' cannot be read"):
        evaluate(Dice(), env_id, episodes=3, results=tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"episodes but no settings\.json"):
        evaluate(Dice(), env_id, episodes=3, results=tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        evaluate(Dice(), env_id, episodes=3, results=file)


def test_other_settings_are_refused_and_named(tmp_path):
    env_id = registered("Guarded", max_turns=9)
    evaluate(Dice(), env_id, episodes=2, results=tmp_path)
    before = (tmp_path / "settings.json").read_text(), (tmp_path / "episodes.jsonl").read_text()

    def refused(match, agent=None, **settings):
        with pytest.raises(ValueError, match=match) as error:
            evaluate(agent or Dice(), env_id, episodes=2, results=tmp_path, **settings)
        assert "choose another folder" in str(error.value)

    refused("agent.name was 'dice' and is 'other'", Dice("other"))
    refused("agent.settings.sides was 6 and is 8", Dice(sides=8))
    refused("agent.class was .*Dice' and is .*FunctionAgent'", FunctionAgent(str.upper))
    refused(rf"{env_id}\.max_turns was 9 and is 4", max_turns=4)
    registered("Guarded", max_turns=9, kwargs={"length": 2})
    refused(rf"{env_id}\.kwargs\.length was None and is 2")
    assert before == ((tmp_path / "settings.json").read_text(), (tmp_path / "episodes.jsonl").read_text())
    registered("Guarded", max_turns=9, tags=["new"])
    assert evaluate(Dice(), env_id, episodes=2, results=tmp_path)[env_id].episodes == 2


def test_a_changed_model_in_the_same_folder_is_another_agent(tmp_path, monkeypatch):
    from envgym.agents import registry as agent_registry

    model, env_id = tmp_path / "model", registered("Fingerprint")
    model.mkdir()
    (model / "dice.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"one")
    monkeypatch.setitem(agent_registry.FOLDERS, "dice.json", f"{__name__}:dice_from_folder")
    evaluate(str(model), env_id, episodes=2, results=tmp_path / "r")
    moved = model.rename(tmp_path / "moved")
    evaluate(str(moved), env_id, episodes=3, results=tmp_path / "r")
    (moved / "model.safetensors").write_bytes(b"two")
    with pytest.raises(ValueError, match=r"agent\.model was '\w+' and is '\w+'"):
        evaluate(str(moved), env_id, episodes=3, results=tmp_path / "r")


def dice_from_folder(folder):
    return Dice()


def test_two_evaluations_do_not_write_to_one_folder(tmp_path):
    env_id = registered("Alone")
    with ResultsFolder(tmp_path, {}, {}), pytest.raises(ValueError, match="another evaluation is writing"):
        evaluate(Dice(), env_id, episodes=2, results=tmp_path)


def test_what_the_caller_got_wrong_leaves_no_folder(tmp_path):
    env_id = registered("Careful")
    with pytest.raises(ValueError, match="Unknown environment"):
        evaluate(Dice(), "test/Nothing-v0", results=tmp_path / "r")
    with pytest.raises(ValueError, match="name each environment once"):
        evaluate(Dice(), [env_id, env_id], results=tmp_path / "r")
    with pytest.raises(ValueError, match="agent_kwargs are for an agent given by name"):
        evaluate(Dice(), env_id, agent_kwargs={"sides": 3}, results=tmp_path / "r")
    with pytest.raises(ValueError, match="agent 'random' cannot be made with these arguments"):
        evaluate("random", env_id, agent_kwargs={"sides": 3}, results=tmp_path / "r")
    assert not (tmp_path / "r").exists()


# -- kill -9 ---------------------------------------------------------------------------------------------------------


def eval_process(folder):
    command = [sys.executable, "-m", "envgym.cli", "eval", "--agent", "random", "--env"]
    command += ["slow_environment:test/Slow-v0", "--episodes", "30", "--attempts", "2", "--concurrency", "3"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.Popen(
        [*command, "--results", str(folder), "--json"], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_an_evaluation_killed_twice_loses_and_repeats_nothing(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = eval_process(whole)
    for at_least in (5, 20):
        process = eval_process(killed)
        file = killed / "episodes.jsonl"
        deadline = time.monotonic() + 90
        while not file.exists() or file.read_bytes().count(b"\n") < at_least:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        on_disk = file.read_bytes()
        assert at_least <= on_disk.count(b"\n") < 60
    with file.open("ab") as cut:
        cut.write(on_disk.splitlines()[0][:-40])
    resumed = eval_process(killed)
    reports = [json.loads(process.communicate(timeout=60)[0])[0] for process in (resumed, uninterrupted)]
    assert resumed.returncode == uninterrupted.returncode == 0
    assert file.read_bytes().startswith(on_disk)
    keys = [(line["env_id"], line["seed"], line["attempt"]) for line in lines(killed)]
    assert sorted(keys) == [("test/Slow-v0", seed, attempt) for seed in range(30) for attempt in (0, 1)]
    assert contents(killed) == contents(whole)
    for report in reports:
        assert report.pop("seconds") > 0
    assert reports[0] == reports[1] and reports[0]["episodes"] == 60
