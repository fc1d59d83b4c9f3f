"""The process between client and server, with small programs in place of the server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import eventually, members, server_of

from envgym.engines.sglang import supervisor as sglang_supervisor
from envgym.engines.sglang.supervisor import end_group

SERVER = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
program = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", program])
open(os.path.join(os.environ["TMPDIR"], "socket"), "w").close()
print(os.environ["TMPDIR"], flush=True)
time.sleep(600)
"""
"""A server with a child that ignores SIGTERM and leaves a file behind."""


@contextmanager
def supervised(*options: str, grace_s: float = 0.0, program: str = SERVER) -> Iterator[subprocess.Popen[str]]:
    supervisor = [sys.executable, "-I", "-S", sglang_supervisor.__file__, str(os.getpid()), str(grace_s)]
    process = subprocess.Popen(
        [*supervisor, sys.executable, "-c", program, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("told", [True, False], ids=["signal", "end of the pipe"])
def test_told_to_end_it_ends_the_server_and_its_children_and_removes_their_files(told: bool) -> None:
    with supervised() as process:
        folder = Path(line_of(process))
        assert (folder / "socket").exists()
        assert len(members(process.pid)) == 3
        if told:
            process.terminate()
        else:
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(10) == 128 + signal.SIGKILL
        assert members(process.pid) == {}
        assert not folder.exists()


def test_with_a_grace_the_server_may_end_in_its_own_way() -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True); signal.pause()"
    with supervised(grace_s=20, program=program) as process:
        line_of(process)
        process.terminate()
        assert process.wait(10) == 7


def test_a_server_that_ignores_the_signal_is_killed_after_the_grace() -> None:
    with supervised("stubborn", grace_s=0.5) as process:
        line_of(process)
        started = time.monotonic()
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGKILL
        assert time.monotonic() - started >= 0.5
        assert members(process.pid) == {}


def test_the_status_of_a_server_that_ends_by_itself_is_passed_on_and_its_children_end() -> None:
    with supervised(program=SERVER.replace("time.sleep(600)\n", "sys.exit(3)\n")) as process:
        assert process.wait(10) == 3
        assert members(process.pid) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_killing_the_supervisor_kills_the_server() -> None:
    with supervised() as process:
        folder = Path(line_of(process))
        server = server_of(process.pid)
        process.kill()
        assert eventually(lambda: server not in members(process.pid))
        shutil.rmtree(folder)


def test_a_killed_client_is_noticed_even_if_a_fork_of_it_holds_the_pipe_open() -> None:
    client = textwrap.dedent(f"""
        import os, subprocess, sys, time
        command = [sys.executable, {sglang_supervisor.__file__!r}, str(os.getpid()), "0"]
        process = subprocess.Popen(command + [sys.executable, "-c", {SERVER!r}], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, start_new_session=True)
        fork = os.fork()
        if fork == 0:
            time.sleep(60)
            os._exit(0)
        print(process.pid, fork, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", client], stdout=subprocess.PIPE, text=True) as process:
        session, fork = map(int, line_of(process).split())
        try:
            assert eventually(lambda: len(members(session)) == 3)
            process.kill()
            assert eventually(lambda: not members(session))
            os.kill(fork, 0)  # the fork lives, and with it the pipe
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_group_without_processes_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], process_group=0)
    process.wait()
    end_group(process.pid)
