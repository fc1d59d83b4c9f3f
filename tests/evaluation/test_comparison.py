"""Paired differences by hand, what is left out, and the command."""

import io
import json
import math
import re

import pytest
from fakes import registered
from rich.console import Console

from envgym import Trajectory, Turn, evaluate
from envgym.cli import main
from envgym.cli.tables import comparison_table, print_tables
from envgym.evaluation.comparison import compare
from envgym.evaluation.metrics import paired_difference, student_t_975
from envgym.evaluation.results_folder import EpisodeKey, EpisodeRecord, ResultsFolder

ENVS = {"t/E-v0": {"max_turns": 5}, "t/F-v0": {"max_turns": 5}}


def write(path, scores, *, name="me", envs=ENVS, failed=()):
    """Results with the given returns by (environment, seed), one for each attempt; above 0.5 is a success."""
    with ResultsFolder(path, {"name": name}, envs) as folder:
        for (env_id, seed), attempts in scores.items():
            for attempt, score in enumerate(attempts):
                turns = (Turn("o", "a", score, {"x": score}),)
                trajectory = Trajectory(
                    env_id,
                    seed,
                    turns,
                    terminated=True,
                    truncated=False,
                    success=None if env_id == "t/F-v0" else score > 0.5,
                )
                folder.add(EpisodeRecord(EpisodeKey(env_id, seed, attempt), trajectory))
        for env_id, seed in failed:
            failure = Trajectory(env_id, seed, (), terminated=False, truncated=False, failure="OSError: gone")
            folder.add(EpisodeRecord(EpisodeKey(env_id, seed, 0), failure))
    return path


def test_quantiles_of_students_t():
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 10: 2.2281, 30: 2.0423, 100: 1.9840}
    assert {d: round(student_t_975(d), 4) for d in table} == table
    assert student_t_975(5000) == pytest.approx(student_t_975(5001), abs=5e-4)
    with pytest.raises(ValueError, match="at least 1"):
        student_t_975(0)


def test_a_paired_difference_by_hand():
    mean, error, half = paired_difference([0.0, 1.0, 2.0], [1.0, 2.0, 6.0])
    assert (mean, error) == (2.0, pytest.approx(1.0))  # differences 1, 1, 4: variance 3 over 3 pairs
    assert half == pytest.approx(4.3027, abs=1e-3)
    assert paired_difference([1.0, 5.0], [3.0, 7.0]) == (2.0, 0.0, 0.0)
    assert paired_difference([1.0], [3.0]) == (2.0, None, None)
    for a, b in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="same length"):
            paired_difference(a, b)
    with pytest.raises(ValueError, match="finite"):
        paired_difference([math.nan], [1.0])


def test_attempts_are_averaged_and_tasks_are_paired(tmp_path):
    e, f = "t/E-v0", "t/F-v0"
    a = write(tmp_path / "a", {(e, 1): [0, 1], (e, 2): [0.2], (f, 1): [1.0], (f, 9): [7.0]}, name="old")
    b = write(tmp_path / "b", {(e, 2): [0.6], (e, 1): [1, 1], (e, 3): [9], (f, 1): [0.5]}, name="new")
    result = compare(a, b)
    assert (result.agent_a, result.agent_b, result.pairs) == ("old", "new", 3)
    rows = {(row.env_id, row.measure): row for row in result.rows}
    assert list(rows) == [(e, "success"), (e, "return"), (f, "return"), ("overall", "success"), ("overall", "return")]
    row = rows[e, "return"]
    assert (row.pairs, row.mean_a, row.mean_b) == (2, pytest.approx(0.35), pytest.approx(0.8))
    assert row.difference == pytest.approx(0.45)  # 0.5 and 0.4
    assert row.error == pytest.approx(0.05)
    assert (row.low, row.high) == (pytest.approx(0.45 - 12.7062 * 0.05, abs=1e-4), pytest.approx(1.0853, abs=1e-4))
    assert rows[e, "success"].difference == pytest.approx(0.75)  # 0.5 -> 1 and 0 -> 1
    single = rows[f, "return"]
    assert (single.pairs, single.difference, single.error, single.low) == (1, -0.5, None, None)
    assert rows["overall", "return"].difference == pytest.approx((0.5 + 0.4 - 0.5) / 3)
    assert rows["overall", "success"].pairs == 2  # F has no notion of success
    assert (result.only_a, result.only_b) == ({f: 1}, {e: 1})
    assert result.notes == ()


def test_failed_episodes_are_left_out_and_counted(tmp_path):
    a = write(tmp_path / "a", {("t/E-v0", 1): [1.0], ("t/E-v0", 2): [1.0]})
    b = write(tmp_path / "b", {("t/E-v0", 1): [1.0]}, failed=[("t/E-v0", 2), ("t/E-v0", 3)])
    result = compare(a, b)
    assert (result.pairs, result.only_a, result.only_b) == (1, {"t/E-v0": 1}, {})
    assert (result.failed_a, result.failed_b) == (0, 2)


def test_results_are_equal_to_themselves_and_the_order_only_turns_the_sign(tmp_path):
    a = write(tmp_path / "a", {("t/E-v0", s): [s / 7] for s in range(5)})
    b = write(tmp_path / "b", {("t/E-v0", s): [(s * s) / 9] for s in range(5)})
    assert {(row.difference, row.low, row.high) for row in compare(a, a).rows} == {(0.0, 0.0, 0.0)}
    for there, back in zip(compare(a, b).rows, compare(b, a).rows, strict=True):
        assert (there.difference, there.low, there.high) == pytest.approx((-back.difference, -back.high, -back.low))


def test_an_environment_that_was_set_up_differently_is_noted(tmp_path):
    a = write(tmp_path / "a", {("t/E-v0", 1): [1.0]})
    b = write(tmp_path / "b", {("t/E-v0", 1): [0.0, 1.0]}, envs={**ENVS, "t/E-v0": {"max_turns": 8}})
    assert compare(a, b).notes == (
        "set up differently in A and B: t/E-v0.max_turns was 5 and is 8",
        "t/E-v0: 1 attempts at a task in A, 2 in B, averaged",
    )


def test_results_that_cannot_be_compared_are_refused(tmp_path):
    a = write(tmp_path / "a", {("t/E-v0", 1): [1.0], ("t/E-v0", 4): [1.0]})
    b = write(tmp_path / "b", {("t/F-v0", 1): [1.0]})
    with pytest.raises(ValueError, match=r"no task .* in common: t/E-v0 with seeds 1 to 4; and t/F-v0 with seeds 1 to"):
        compare(a, b)
    empty = write(tmp_path / "empty", {})
    with pytest.raises(ValueError, match="no finished episode"):
        compare(a, empty)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="other' holds no results of an evaluation"):
        compare(a, tmp_path / "other")
    with pytest.raises(ValueError, match="nowhere' is not a folder"):
        compare(tmp_path / "nowhere", a)


# -- the commands ----------------------------------------------------------------------------------------------------


def test_eval_and_compare_from_the_command_line(tmp_path, capsys):
    ids = ["envgym/HigherLower-v0", "envgym/PointerChase-v0"]
    for agent in ("solver", "random"):
        command = ["eval", "--agent", agent, "--env", *ids, "--episodes", "6", "--attempts", "2", "--json"]
        assert main([*command, "--results", str(tmp_path / agent)]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["env_id"] for report in printed[0]] == [*ids, "overall"]
    assert printed[0][2]["episodes"] == 24 and printed[0][2]["pass_hat_k"]["2"] == printed[0][2]["success"]
    assert main(["compare", str(tmp_path / "random"), str(tmp_path / "solver"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["pairs"] == 12 and result["rows"][1]["difference"] > 0
    assert main(["compare", str(tmp_path / "random"), str(tmp_path / "solver")]) == 0
    assert "12 tasks were played in both" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "random"), str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["eval", "--agent", "random", "--env", *ids, "--results", str(tmp_path / "solver")]) == 2
    assert re.search(r"agent.name was 'solver' and is 'random'.*choose another folder", capsys.readouterr().err)


def test_the_table_shows_attempts_failures_and_the_overall_column(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    flaky = registered("TableFlaky", kwargs={"fail_step": lambda seed, turn: seed == 1})
    steady = registered("TableSteady")
    command = ["eval", "--agent", "random", "--env", flaky, steady, "--episodes", "3", "--attempts", "2"]
    assert main([*command, "--trajectories", str(tmp_path / "t.jsonl"), "--results", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"pass@2 +│ +1\.000 ± 0\.000", shown) and "pass^2" in shown and "overall" in shown
    assert re.search(r"failed episodes +│ +2 \(33%\) +│ +0 +│ +2 \(17%\)", shown)
    assert "failed 2 times: OSError: the sandbox died" in shown
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 12
    assert main([*command, "--trajectories", str(tmp_path / "t.jsonl"), "--results", str(tmp_path / "r")]) == 0
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 12


def test_arguments_of_the_agent_come_from_the_command_line(capsys):
    command = ["eval", "--env", "envgym/HigherLower-v0", "--episodes", "1"]
    assert main([*command, "--agent", "solver", "--agent-arg", "depth=3"]) == 2
    assert "agent 'solver' cannot be made with these arguments" in capsys.readouterr().err
    assert main([*command, "--agent", "solver", "--agent-arg", "depth"]) == 2
    assert "--agent-arg takes FIELD=VALUE" in capsys.readouterr().err
    assert main([*command, "--agent", "openai:m@http://localhost:1/v1", "--agent-arg", "api_key=secret"]) == 2
    assert "set OPENAI_API_KEY" in capsys.readouterr().err


def test_evaluate_reports_what_compare_reads(tmp_path):
    env_id = registered("Read", kwargs={"length": 2})
    for name, agent in (("a", lambda observation: "x"), ("b", lambda observation: "y")):
        evaluate(agent, env_id, episodes=5, results=tmp_path / name)
    rows = compare(tmp_path / "a", tmp_path / "b").rows
    assert [(row.mean_a, row.mean_b, row.pairs) for row in rows] == [(1.0, 1.0, 5)] * 2


NUMBERS = ("0.000", "1.000", "+1.000 ± 0.000", "[+1.000, +1.000]", "12")


def test_a_comparison_is_whole_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    env_id = "envgym/AnEnvironmentWithALongNameOfItsOwn-v0"
    for name, score in {"a" * 30: 0.0, "b" * 30: 1.0}.items():
        write(tmp_path / name, {(env_id, seed): [score] for seed in range(12)}, envs={env_id: {}})
    assert main(["compare", str(tmp_path / ("a" * 30)), str(tmp_path / ("b" * 30))]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "success" in line]
    assert tuple(cell.strip() for cell in row.strip("│").split("│")) == (f"{env_id} success", *NUMBERS)


@pytest.mark.parametrize("width", [20, 60, 80, 100])
def test_a_narrow_terminal_wraps_names_and_no_number(tmp_path, width):
    for name, score in {"a": 0.0, "b": 1.0}.items():
        write(tmp_path / name, {("t/E-v0", seed): [score] for seed in range(12)})
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_tables(console, [comparison_table(compare(tmp_path / "a", tmp_path / "b"), "a", "b")])
    shown = console.file.getvalue()
    assert all(number in shown for number in NUMBERS) and "…" not in shown
    if width >= 80:
        assert max(map(len, shown.splitlines())) <= width
