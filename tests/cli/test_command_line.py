"""The command line: its answers to mistakes, own environments in every command, and how one leaves it."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from envgym.cli import main
from envgym.cli.main import parser
from envgym.cli.tables import print_tables, report_tables
from envgym.evaluation.results import EnvironmentReport, summarise
from envgym.types import Trajectory, Turn

HERE = Path(__file__).parent
OWN = "own_games:mine/Double-v0"


@pytest.fixture(autouse=True)
def beside_own_games(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def command(*arguments, cwd=HERE, **environment):
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "import sys; from envgym.cli import main; sys.exit(main())", *map(str, arguments)],
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1", **environment},
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def on_a_terminal(*arguments):
    """A command with a terminal of its own: its process and the other end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "envgym.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(HERE), "TERM": "dumb"},
        start_new_session=True,
        # A shell that runs these tests in the background has them, and what they start, ignore an interruption.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(theirs)
    return process, ours


def read_until(terminal, text, *, within_s=30.0):
    """What the terminal shows until it shows `text`, or to its end where `text` is None."""
    shown, deadline = "", time.monotonic() + within_s
    while text is None or text not in shown:
        assert select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0], shown
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how the other end of a terminal says that it is closed
            part = b""
        if not part:
            assert text is None, shown
            break
        shown += part.decode()
    return shown


def until_it_waits(pid, *, within_s=30.0):
    """Returns when a process is asleep for good: Python prints a prompt a moment before it reads, and an interruption
    in between, which no person manages, would be noticed after the read only."""
    asleep, deadline = 0, time.monotonic() + within_s
    while asleep < 5:
        assert time.monotonic() < deadline
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.05)


# -- mistakes --------------------------------------------------------------------------------------------------------

HIGHER_LOWER = "envgym/HigherLower-v0"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (f"eval --agent random --greedy --env {HIGHER_LOWER}", "agent 'random' cannot be made with"),
        (f"eval --agent solver --greedy --env {HIGHER_LOWER}", "agent 'solver' cannot be made with"),
        (f"eval --agent human --greedy --env {HIGHER_LOWER}", "agent 'human' cannot be made with"),
        ("eval --agent random --env nomodule:mine/X-v0", "there is no module 'nomodule' to import"),
        ("eval --agent random --env own_games.sub:mine/X-v0", "there is no module 'own_games.sub'"),
        ("eval --agent random --env other/X-v0", "under 'other/'.*let it be imported: 'MODULE:other/X-v0'"),
        ("eval --agent random --env own_games:mine/Duoble-v0", "Did you mean 'mine/Double-v0'?"),
        ("eval --agent random --env own_games:mine/Zebra-v0", "only mine/Double-v0, mine/DoubleEndless-v0"),
        (f"eval --agent random --env {OWN} --env-arg size=x", "cannot be made with size='x'"),
        (f"eval --agent random --env {OWN} --env-arg sise=2", "takes no argument 'sise'"),
        (f"eval --agent random --env {OWN} --env-arg size", "--env-arg takes FIELD=VALUE"),
        (f"eval --agent random --env {HIGHER_LOWER} --episodes 999999999999999", "at most 1,000,000 episodes"),
        (f"eval --agent FILE --env {HIGHER_LOWER}", "no agent can be made from the file"),
        (f"eval --agent FOLDER --env {HIGHER_LOWER}", "neither a run.* nor a whole model folder"),
        (f"eval --agent random --env {HIGHER_LOWER} --results FILE", "is a file"),
        (f"eval --agent random --env {HIGHER_LOWER} --trajectories FOLDER", "Is a directory"),
        (f"eval --agent random --env {HIGHER_LOWER} --trajectories FOLDER/no/t.jsonl", "No such file"),
        ("play own_games:mine/Zebra-v0 --agent random", "Unknown environment"),
        (f"play {OWN} --agent randm", "Did you mean 'random'?"),
        (f"play {OWN} --agent random --env-arg size=x", "cannot be made with"),
        ("info nomodule:mine/X-v0", "there is no module"),
        (f"info {OWN} --env-arg sise=2", "takes no argument"),
        (f"check {OWN} --env-arg sise=2", "takes no argument"),
        (f"serve-tools {OWN} --env-arg sise=2", "takes no argument"),
        ("compare FOLDER FOLDER", "holds no results"),
        ("compare FILE FILE", "is not a folder"),
        ("train FILE", "is not valid JSON"),
        ("train LIST", "holds no configuration: a JSON object is expected, not list"),
        ("train FOLDER", "is a folder; continue a run with --resume"),
        ("train nonsense", "neither a recipe"),
        ("train", "name a recipe"),
        ("train quickstart --set env=3", "env: "),
        ("train quickstart --set policy_loss.clip_low=0.1", "the section 'policy_loss' is called 'loss' now"),
        ("train quickstart --set seed", "--set takes FIELD=VALUE"),
        ("train --resume FOLDER", "holds no run"),
        ("train --resume FILE", "holds no run"),
        ("export FOLDER", "holds no run"),
        ("export FOLDER/nowhere", "holds no run"),
        ("new 1bad --dir FOLDER", "cannot name a package"),
        ("list --tag nonsense", "no environment has the tag"),
    ],
)
def test_a_mistake_is_answered_in_one_line(tmp_path, capsys, typed, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"\xff\xfe not json")
    (tmp_path / "list").write_text("[1]")
    places = {"FOLDER": tmp_path / "folder", "FILE": tmp_path / "file", "LIST": tmp_path / "list"}
    assert main(re.sub("FOLDER|FILE|LIST", lambda match: str(places[match[0]]), typed).split()) == 2
    errors = capsys.readouterr().err
    assert re.search(message.replace("?", r"\?"), errors), errors
    assert errors.startswith("envgym: ") and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--episodes", "0", "must be from 1"),
        ("--episodes", "many", "'many' is not a whole number"),
        ("--attempts", "-1", "must be from 1"),
        ("--concurrency", "1.5", "'1.5' is not a whole number"),
        ("--seed", "-1", "must be from 0"),
        ("--seed", str(2**63), "2**63 - 1"),
        ("--max-turns", "0", "must be from 1"),
    ],
)
def test_a_number_out_of_range_is_named(capsys, option, value, message):
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "--agent", "random", "--env", HIGHER_LOWER, option, value])
    assert f"argument {option}: " in (errors := capsys.readouterr().err) and message in errors


def test_a_refused_command_leaves_what_a_file_held(tmp_path):
    kept = tmp_path / "t.jsonl"
    kept.write_text("yesterday's episodes\n")
    evaluation = ["eval", "--agent", "solver", "--episodes", "2", "--trajectories", str(kept), "--env"]
    assert main([*evaluation, "nomodule:mine/X-v0"]) == 2
    assert kept.read_text() == "yesterday's episodes\n"
    assert main([*evaluation, OWN]) == 0
    assert sorted(Trajectory.from_json(line).seed for line in kept.read_text().splitlines()) == [0, 1]


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch, capsys):
    (tmp_path / "needy_games.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "torn_games.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["info", "needy_games:mine/X-v0"]) == 2
    assert "'needy_games' cannot be imported for 'needy_games:mine/X-v0': it needs 'a_package_nobody_has'" in (
        capsys.readouterr().err
    )
    assert main(["info", "torn_games:mine/X-v0"]) == 2
    assert "(ZeroDivisionError: division by zero)" in capsys.readouterr().err


def test_a_bug_is_shown_with_the_lines_of_the_users_own_code_and_with_debug_whole(tmp_path, monkeypatch, capsys):
    (tmp_path / "buggy_games.py").write_text(
        "import envgym\n"
        "class Buggy(envgym.TextEnv):\n"
        "    def __init__(self):\n"
        "        self.table = self.load()\n"
        "    def load(self):\n"
        "        return {}['board']\n"
        "envgym.register('mine/Buggy-v0', Buggy)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = {}
    for debug in ([], ["--debug"]):
        assert main(["play", "buggy_games:mine/Buggy-v0", "--agent", "random", *debug]) == 1
        shown[bool(debug)] = capsys.readouterr().err
    assert re.findall(r'File ".*?([^/"]+)", line (\d+)', shown[False]) == [
        ("buggy_games.py", "4"),
        ("buggy_games.py", "6"),
    ]
    assert shown[False].splitlines()[-2:] == [
        "envgym: KeyError: 'board'",
        "envgym: with --debug the whole traceback is shown",
    ]
    assert shown[True].startswith("Traceback (most recent call last):\n") and "registry.py" in shown[True]


def test_every_command_takes_debug_and_shows_the_traceback_of_a_mistake(capsys):
    commands = next(action for action in parser()._actions if action.choices).choices
    assert {"--debug" in command.format_help() for command in commands.values()} == {True}
    assert main(["info", "envgym/Nope-v0", "--debug"]) == 2
    assert "Traceback (most recent call last):" in (shown := capsys.readouterr().err) and "UnknownIdError" in shown


# -- environments of one's own ---------------------------------------------------------------------------------------


def test_own_environments_and_their_arguments_work_in_every_command(capsys):
    assert main(["info", OWN, "--env-arg", "size=21"]) == 0
    assert "  size = 21\n" in (page := capsys.readouterr().out) and "> 42   reward +1.00 (right +1.00)" in page
    assert main(["check", OWN, "--env-arg", "size=21"]) == 0
    assert capsys.readouterr().out == "mine/Double-v0: 19 of 19 checks passed\n"
    assert main(["check", OWN, "--env-arg", "broken=true"]) == 1
    assert main(["play", OWN, "--agent", "solver", "--env-arg", "size=21"]) == 0
    assert "> 42   reward +1.00" in capsys.readouterr().out
    assert main(["eval", "--agent", "solver", "--env", OWN, "--env-arg", "size=3", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["success"] == 1.0


def test_the_module_may_lie_in_the_folder_one_is_in(tmp_path):
    (tmp_path / "here_games.py").write_text((HERE / "own_games.py").read_text())
    played = command("play", "here_games:mine/Double-v0", "--agent", "solver", cwd=tmp_path)
    assert played.returncode == 0 and b"terminated, solved" in played.stdout, played.stderr


def test_results_remember_the_arguments_of_the_environment(tmp_path, capsys):
    evaluation = ["eval", "--agent", "solver", "--env", OWN, "--episodes", "2", "--results", str(tmp_path / "r")]
    assert main([*evaluation, "--env-arg", "sise=3"]) == 2 and not (tmp_path / "r").exists()
    assert main([*evaluation, "--env-arg", "size=3"]) == 0
    capsys.readouterr()
    assert main([*evaluation, "--env-arg", "size=4"]) == 2
    assert "kwargs.size was 3 and is 4" in capsys.readouterr().err


@pytest.mark.slow
def test_training_takes_an_environment_of_ones_own(tmp_path, capsys):
    small = {
        "env.id": OWN,
        "num_iterations": 1,
        "warm_start.num_episodes": 8,
        "rollout.episodes_per_iteration": 8,
        "evaluation.episodes": 4,
    }
    changes = [part for name, value in small.items() for part in ("--set", f"{name}={value}")]
    assert main(["train", "quickstart", "--run-dir", str(tmp_path / "run"), *changes]) == 0
    assert f"{OWN} on 4 held-out seeds" in capsys.readouterr().out
    assert main(["eval", "--agent", str(tmp_path / "run"), "--env", OWN, "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"sampled ({tmp_path / 'run'})\n")


# -- evaluations -----------------------------------------------------------------------------------------------------


def test_an_evaluation_without_a_finished_episode_says_why_and_fails(capsys):
    evaluation = ["eval", "--agent", "solver", "--env", OWN, "--episodes", "3", "--env-arg", "broken=true"]
    assert main(evaluation) == 1
    shown = capsys.readouterr()
    for row in ("success", "return", "turns"):
        assert re.search(rf"│ {row} +│ +- │", shown.out), shown.out
    assert "failed 3 times: OSError: no board (own_games.py:" in shown.out
    assert "envgym: no episode finished; the commonest failure: OSError: no board" in shown.err
    assert main([*evaluation, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)[0]
    assert (report["episodes"], report["failed"], report["mean_return"], report["success"]) == (0, 3, None, None)


def test_the_caption_names_the_agent_once(capsys):
    assert main(["eval", "--agent", "solver", "--env", OWN, "--episodes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].strip() == "solver"


def test_many_environments_are_shown_below_each_other_where_they_do_not_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ids = [HIGHER_LOWER, "envgym/PointerChase-v0", "envgym/Upkeep-v0", OWN]
    assert main(["eval", "--agent", "solver", "--episodes", "1", "--env", *ids]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in (*ids, "overall"):
        assert sum(name in line for line in lines) == 1


@pytest.mark.parametrize("width", [30, 50, 80, 200])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_width_cuts_a_number_of_the_table_after_training(width, is_terminal):
    played = [Trajectory("t/E-v0", seed, (Turn("o", "a", 0.5),), True, False, success=seed < 3) for seed in range(8)]
    names = [f"{kind} {when}" for kind in ("sampled", "greedy") for when in ("before", "after")]
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    print_tables(console, report_tables({name: summarise("t/E-v0", "me", played) for name in names}, console.width))
    shown = console.file.getvalue()
    assert shown.count("0.375 ± 0.171") == 4 and shown.count("0.500 ± 0.000") == 4 and "…" not in shown
    assert all(shown.count(name) == 1 for name in names)
    if width >= 80:
        assert max(map(len, shown.splitlines())) <= width


def test_a_report_reads_as_a_table():
    def played(seed, reward, success):
        return Trajectory("t/E-v0", seed, (Turn("o", "a", reward, {"gain": reward}),), True, False, success=success)

    failed = Trajectory("t/E-v0", 3, (), False, False, failure="OSError: gone")
    report = summarise("t/E-v0", "me", [played(1, 1.0, True), played(2, 0.0, False), failed])
    assert str(report).splitlines() == [
        "me",
        "                         t/E-v0",
        "success           0.500 ± 0.354",
        "return            0.500 ± 0.354",
        "  gain            0.500 ± 0.354",
        "reward per turn           0.500",
        "terminated                 100%",
        "turns                       1.0",
        "sampled tokens                -",
        "seconds                    0.00",
        "actions in error           0.00",
        "episodes                      2",
        "failed episodes         1 (33%)",
        "t/E-v0: failed once: OSError: gone",
    ]
    nothing = summarise("t/E-v0", "me", [failed])
    assert re.search(r"success +-\n", str(nothing)) and "0.0" not in str(nothing)
    assert EnvironmentReport(**json.loads(json.dumps(nothing.as_dict()))) == nothing


# -- playing and leaving ---------------------------------------------------------------------------------------------


def test_a_person_sees_reward_and_components_of_every_step_and_leaves_with_the_end_of_input():
    process, terminal = on_a_terminal("play", OWN)
    read_until(terminal, "> ")
    os.write(terminal, b"1\n")
    assert "reward -0.25 (wrong -0.25)\r\nno\r\n> " in read_until(terminal, "\r\n> ")
    os.write(terminal, b"pass\n")
    assert "reward +0.00\r\nno\r\n> " in read_until(terminal, "\r\n> ")
    os.write(terminal, b"\x04")
    assert "left after 2 turns, return -0.25" in read_until(terminal, None)
    assert process.wait(timeout=30) == 0


def test_a_person_plays_to_the_end():
    process, terminal = on_a_terminal("play", OWN)
    read_until(terminal, "> ")
    os.write(terminal, b"8\n")
    shown = read_until(terminal, None)
    assert "reward +1.00 (right +1.00)\r\nyes\r\nsolved\r\nterminated after 1 turn, return +1.00" in shown
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("arguments", [["play", OWN], ["play", "own_games:mine/DoubleEndless-v0"]])
def test_the_first_interruption_ends_play_at_once(arguments):
    process, terminal = on_a_terminal(*arguments)
    read_until(terminal, "> ")
    until_it_waits(process.pid)
    process.send_signal(signal.SIGINT)
    assert "envgym: interrupted" in (shown := read_until(terminal, None)) and "Traceback" not in shown
    assert process.wait(timeout=30) == 130


def test_an_agent_can_be_watched_where_there_is_no_end(capsys):
    assert main(["play", "own_games:mine/DoubleEndless-v0", "--agent", "solver"]) == 0
    assert "  max_turns, return +500.00" in capsys.readouterr().out
    assert main(["play", "own_games:mine/DoubleEndless-v0", "--agent", "solver", "--max-turns", "7"]) == 0
    assert "  max_turns, return +7.00" in capsys.readouterr().out


def test_a_failure_while_an_agent_plays_is_an_exit_status(capsys):
    assert main(["play", OWN, "--agent", "solver", "--env-arg", "broken=true"]) == 1
    assert "failed: OSError: no board" in capsys.readouterr().out


# -- how one leaves --------------------------------------------------------------------------------------------------


def test_a_terminal_without_unicode_is_no_error():
    shown = command("eval", "--agent", "solver", "--env", OWN, "--episodes", "2", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0 and b"1.000 ? 0.000" in shown.stdout, shown.stderr


def test_a_reader_that_has_enough_is_no_error():
    program = "import sys; from envgym.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "info", HIGHER_LOWER, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=30)) == (b"", 141)
    process.stderr.close()
