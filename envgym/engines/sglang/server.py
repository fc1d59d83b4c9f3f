"""An SGLang server as a child of this process, and never longer than it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from envgym.engines.sglang import supervisor
from envgym.engines.sglang.client import call, is_healthy
from envgym.engines.sglang.install import Device, server_environment, sglang_python
from envgym.engines.sglang.served_model import check_served_model
from envgym.engines.sglang.settings import ServerSettings, bind_error, server_arguments
from envgym.errors import ServerError

TAIL_LINES = 30
POLL_S = 0.2
PORTS = range(20_000, 30_000)
"""Where free ports are looked for: below those that the system gives to outgoing connections, one of which could
take a port in the half minute before the server does."""
STOP_GRACE_S = {"cpu": 0.0, "cuda": 30.0}
"""Seconds between SIGTERM and SIGKILL. With CUDA, SGLang releases memory that would otherwise stay taken for a while;
it looks for the signal every 5 s. On a CPU there is nothing to release, and the server is killed at once."""


class SGLangServer:
    """Starts an SGLang server for a model folder and stops it; a context manager.

    The server runs in its own virtual environment (`envgym serve --install`) and process session. It ends with `stop`,
    at the end of the block, at the exit of this process, and also when this process is killed.

        with SGLangServer("path/to/model", "cpu") as server:
            policy = SGLangPolicy(server.url)

    Args:
        model: A Hugging Face-format folder with safetensors weights.
        device: "cuda" or "cpu".
        settings: The other fields of `ServerSettings`.

    Attributes:
        url: Its address, such as `http://127.0.0.1:20017`.
        settings: How it runs.
        port: Its port.
        log_path: The file with its output.
        process: The supervising process once started, or None; it runs exactly as long as the server does.

    Raises:
        ValueError: A setting is out of range, the host is no address of this machine, or settings do not fit together.
        ModelError: The model folder is missing, incomplete, or has a tokenizer for another vocabulary.
    """

    def __init__(self, model: str | Path, device: Device = "cuda", **settings: Any) -> None:
        self.settings = ServerSettings(device=device, **settings)
        config = check_served_model(model, tokenizer=self.settings.tokenizer)
        self.model = Path(model).absolute()
        self.port = self.settings.port or free_port(self.settings.host)
        self._arguments = server_arguments(self.model, config, self.settings)
        self.log_path = self.settings.log_path and self.settings.log_path.absolute()
        self._keep_log = self.log_path is not None
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.settings.host in ("", "0.0.0.0") else self.settings.host
        return f"http://{host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server's process runs; it may still be starting."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> SGLangServer:
        """Starts the server and waits until it is healthy.

        Returns:
            This server.

        Raises:
            MissingDependencyError: There is no virtual environment with this version of SGLang.
            ServerError: The port is taken, or the server ended or was not healthy in time; the end of its log is in the
                message. Nothing of it is left running.
        """
        self.launch()
        try:
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Starts the server's process and returns at once; several servers start together this way.

        Raises:
            MissingDependencyError: There is no virtual environment with this version of SGLang.
            ServerError: It runs already, or the port is taken or not for everybody.
        """
        if self.running:
            raise ServerError(f"{self.url} was started already")
        python = sglang_python(self.settings.device)
        if problem := bind_error(self.settings.host, self.port):
            if self.settings.port is not None:
                what = "is taken, by another server perhaps; stop it, or"
                if problem.errno != errno.EADDRINUSE:
                    what = f"cannot be listened on ({problem.strerror});"
                raise ServerError(
                    f"Port {self.port} of {self.settings.host} {what} choose another port (port=None takes a free one)"
                )
            self.port = free_port(self.settings.host)
        if self.log_path is None:
            descriptor, name = tempfile.mkstemp(prefix=f"envgym-sglang-{self.port}-", suffix=".log")
            os.close(descriptor)
            self.log_path = Path(name)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        server = [str(python), "-m", "sglang.launch_server", *self._arguments]
        server += ["--host", self.settings.host, "--port", str(self.port), *self.settings.extra_args]
        self._owner = os.getpid()
        grace_s = STOP_GRACE_S[self.settings.device]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self._owner), str(grace_s), *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=server_environment(self.settings.device, self.settings.threads),
                start_new_session=True,
            )
        atexit.register(self.stop)

    def wait_until_healthy(self, timeout_s: float | None = None) -> None:
        """Returns when the server answers, with a line that counts the seconds where standard error is a terminal.

        Args:
            timeout_s: Most seconds to wait; `startup_timeout_s` when None.

        Raises:
            ServerError: It ended, or was not healthy in time; the message has the end of its log.
        """
        timeout_s = self.settings.startup_timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        shown = sys.stderr.isatty()
        try:
            while not is_healthy(self.url):
                elapsed = time.monotonic() - started
                self.check()
                if elapsed > timeout_s:
                    raise ServerError(
                        f"SGLang on {self.settings.device} was not healthy after {timeout_s:.0f} s; give it more "
                        f"(startup_timeout_s, --timeout) or look into its log. {self._tail()}"
                    )
                if shown:
                    print(f"\rstarting SGLang on {self.settings.device} ({elapsed:.0f} s) ...", end="", file=sys.stderr)
                    sys.stderr.flush()
                time.sleep(POLL_S)
        finally:
            if shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self.check()
        if self.settings.device == "cpu":
            # Objects there by now are there to stay: its garbage collector, which otherwise walks through all of them
            # at every flush of the cache (a third of a second), passes them over. SGLang asks itself for this once it
            # has warmed up; without a warm-up it does so before it listens, in vain (0.5.23).
            with contextlib.suppress(ServerError):
                call(self.url, "POST", "/freeze_gc", timeout_s=30.0)

    def check(self) -> None:
        """Raises if the server is not running.

        Raises:
            ServerError: It was never started, or it ended; the message has the end of its log.
        """
        if self.process is None:
            raise ServerError("the SGLang server was not started")
        status = self.process.poll()
        if status is None:
            return
        tail, where = self._tail(), f"Port {self.port} of {self.settings.host}"
        if "ddress already in use" in tail:
            raise ServerError(f"{where} was taken while SGLang started; start it again. {tail}")
        how = f"was killed by {signal.Signals(status - 128).name}" if status > 128 else f"ended with status {status}"
        raise ServerError(f"SGLang on {self.settings.device} {how}. {tail}")

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when the server has ended, or after a time.

        Args:
            timeout_s: Most seconds to wait; None waits for the end.
        """
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)

    def stop(self) -> None:
        """Ends the server and all its processes. Does nothing if none runs, or in a fork of the process it serves."""
        process, self.process = self.process, None
        if process is None or self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        orderly = process.poll() is None
        if orderly:
            process.terminate()
            try:
                process.wait(STOP_GRACE_S[self.settings.device] + 10)
            except subprocess.TimeoutExpired:
                process.kill()  # the kernel then kills the server, and the server's processes with it
                process.wait()
        assert process.stdin is not None
        process.stdin.close()
        if orderly and not self._keep_log and self.log_path is not None:
            self.log_path.unlink(missing_ok=True)
            self.log_path = None

    def __enter__(self) -> SGLangServer:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tail(self) -> str:
        if self.log_path is None:
            return ""
        self._keep_log = True  # somebody is told to read it
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            return f"(Its log cannot be read: {error})"
        return f"The end of its log, '{self.log_path}':\n" + "\n".join(f"    {line}" for line in lines)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on.

    Raises:
        ServerError: None was found, or the host has no such address.
    """
    chance = random.SystemRandom()  # the program's own random state stays as it is
    for _ in range(100):
        port = chance.choice(PORTS)
        if bind_error(host, port) is None:
            return port
    raise ServerError(
        f"no free port from {PORTS.start} to {PORTS.stop - 1} was found on '{host}'; is it an address here?"
    )
