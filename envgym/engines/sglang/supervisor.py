"""Runs an SGLang server as a child, and ends it with all its processes when the process that asked for it is gone.

A process between the client and the server, started by `SGLangServer` with only the standard library. It ends the
server when it is told to (SIGTERM) and when the client has ended in whatever way: standard input is a pipe that the
client holds open, and since a fork of the client can hold it too, the parent's process id is watched as well.

Usage: sglang_supervisor.py PARENT_PID GRACE_S COMMAND...
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLL_S = 0.25
LOOK_S = 10.0
PR_SET_PDEATHSIG = 1


def supervise(parent_pid: int, grace_s: float, command: list[str]) -> int:
    """Runs the command until it ends or the parent does.

    Args:
        parent_pid: Process id of the client; the server ends when it is no longer the parent of this process.
        grace_s: Seconds between SIGTERM and SIGKILL; 0 kills at once.
        command: The server.

    Returns:
        The exit status of the server, as `subprocess` gives it.
    """
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: told.append(number))
    # SGLang leaves the names of its sockets in the temporary folder; here they go with the server.
    with tempfile.TemporaryDirectory(prefix="envgym-sglang-") as folder:
        environment = {**os.environ, "TMPDIR": folder}
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=environment, process_group=0, preexec_fn=_end_with_parent
        )
        shared, looked = set[Path](), time.monotonic()
        while server.poll() is None and not told and os.getppid() == parent_pid:
            if time.monotonic() - looked > LOOK_S:  # once it has ended, nothing says which files were its own
                shared, looked = shared | _shared_memory_of(server.pid), time.monotonic()
            if select.select([sys.stdin], [], [], POLL_S)[0] and not os.read(sys.stdin.fileno(), 1):
                break
        shared |= _shared_memory_of(server.pid)
        if server.poll() is None and grace_s > 0:
            server.terminate()
            try:
                server.wait(grace_s)
            except subprocess.TimeoutExpired:
                print(f"envgym: SGLang did not end within {grace_s:.0f} s of SIGTERM; killing it", flush=True)
        if server.poll() is None:
            server.kill()
        server.wait()
        end_group(server.pid)
        for path in shared:
            path.unlink(missing_ok=True)
    return server.returncode


def end_group(group: int, patience_s: float = 1.0) -> None:
    """Gives the rest of a process group, which ends by itself as the server has, a moment, and kills what is left."""
    deadline = time.monotonic() + patience_s
    try:
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _end_with_parent() -> None:
    """Between fork and exec of the server: it is killed if the supervisor is. (This process has one thread, and the
    kernel's promise holds for the thread that forked.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _shared_memory_of(group: int) -> set[Path]:
    """The files that SGLang's processes share in memory and leave behind, also when they end in good order."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if os.getpgid(int(maps.parent.name)) != group:
                continue
            for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
                if "/dev/shm/sglang_loads_" in line:
                    found.add(Path(line[line.index("/dev/shm/") :]))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    status = supervise(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    sys.exit(status if status >= 0 else 128 - status)
