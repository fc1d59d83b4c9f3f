"""An SGLang server as a child of this process, and never longer than it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from envgym.engines.sglang import supervisor as sglang_supervisor
from envgym.engines.sglang.client import call, is_healthy
from envgym.engines.sglang.flags import server_arguments
from envgym.engines.sglang.install import Device, server_environment, sglang_python
from envgym.engines.sglang.served_model import check_served_model
from envgym.errors import ServerError

TAIL_LINES = 30
POLL_S = 0.2
PORTS = range(20_000, 30_000)
"""Where free ports are looked for: below those that the system gives to outgoing connections, one of which could
take a port in the half minute before the server does."""
MAX_PORT = 65_535
MAX_SEED = 2**32 - 1
"""SGLang also seeds numpy, which takes no larger one."""
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
        port: Where it listens, from 1 to 65535; a free one when None.
        host: IPv4 address, or name of one, that it listens on. The server has no password: any other than 127.0.0.1
            lets the network use it and replace its weights.
        dtype: "float32", "bfloat16" or "float16"; bfloat16 with CUDA and float32 on a CPU when None.
        context_length: Most tokens of a sequence; the model's when None.
        mem_fraction: Share of the GPU's memory for weights and cache; 0.85, or 0.6 with `memory_saver`, when None.
        max_total_tokens: Tokens in the cache; on a CPU what fits into 2 GiB when None, with CUDA what fits.
        max_running_requests: Requests that run at once; on a CPU 256 when None, with CUDA what SGLang finds.
        deterministic: Results do not depend on what else is in the batch, and `sampling_seed` acts; the
            kernels that do so are slower.
        memory_saver: The server can give its GPU memory to the learner and take it back (one GPU for both).
        tensor_parallel: GPUs that share the model.
        tokenizer: False loads none: requests and answers are token ids only, and there are no OpenAI endpoints.
        seed: Seed of sampling that has none of its own, from 0 to 2**32 - 1.
        threads: Threads of linear algebra on a CPU. 1 is the fastest by far for small models.
        extra_args: A list of further arguments of `sglang.launch_server`; they win over those above.
        log_path: File the server's output is written to; a temporary one, removed after an orderly stop, when None.
        startup_timeout_s: Most seconds until it must be healthy.

    Attributes:
        url: Its address, such as `http://127.0.0.1:20017`.
        port: Its port.
        log_path: The file with its output.
        process: The supervising process once started, or None; it runs exactly as long as the server does.

    Raises:
        ValueError: A number is out of range, the host is no address of this machine, or arguments do not fit together.
        ModelError: The model folder is missing, incomplete, or has a tokenizer for another vocabulary.
    """

    def __init__(
        self,
        model: str | Path,
        device: Device = "cuda",
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        dtype: str | None = None,
        context_length: int | None = None,
        mem_fraction: float | None = None,
        max_total_tokens: int | None = None,
        max_running_requests: int | None = None,
        deterministic: bool = False,
        memory_saver: bool = False,
        tensor_parallel: int = 1,
        tokenizer: bool = True,
        seed: int = 0,
        threads: int | None = 1,
        extra_args: Sequence[str] = (),
        log_path: str | Path | None = None,
        startup_timeout_s: float = 600.0,
    ) -> None:
        if port is not None:
            _check_whole("port", port, 1, MAX_PORT, "; None (--port 0) takes a free one")
        for name, number in (
            ("context_length", context_length),
            ("max_total_tokens", max_total_tokens),
            ("max_running_requests", max_running_requests),
            ("threads", threads),
        ):
            if number is not None:
                _check_whole(name, number, 1)
        _check_whole("seed", seed, 0, MAX_SEED)
        if math.isnan(startup_timeout_s) or startup_timeout_s <= 0:
            raise ValueError(f"startup_timeout_s (--timeout) must be above 0 s, got {startup_timeout_s}")
        if isinstance(extra_args, str):
            raise ValueError(f"extra_args must be a list of arguments, got the text '{extra_args}'")
        config = check_served_model(model, tokenizer=tokenizer)
        _check_host(host)
        self.model = Path(model).absolute()
        self.device: Device = device
        self.host = host
        self._chosen = port is None
        self.port = free_port(host) if port is None else port
        self._arguments = server_arguments(
            self.model,
            device,
            config=config,
            dtype=dtype,
            context_length=context_length,
            mem_fraction=mem_fraction,
            max_total_tokens=max_total_tokens,
            max_running_requests=max_running_requests,
            deterministic=deterministic,
            memory_saver=memory_saver,
            tensor_parallel=tensor_parallel,
            tokenizer=tokenizer,
            seed=seed,
        )
        self._extra_args = tuple(extra_args)
        self._threads = threads
        self._keep_log = log_path is not None
        self.log_path = None if log_path is None else Path(log_path).absolute()
        self.startup_timeout_s = startup_timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host
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
        python = sglang_python(self.device)
        if problem := bind_error(self.host, self.port):
            if not self._chosen:
                what = "is taken, by another server perhaps; stop it, or"
                if problem.errno != errno.EADDRINUSE:
                    what = f"cannot be listened on ({problem.strerror});"
                raise ServerError(
                    f"Port {self.port} of {self.host} {what} choose another port (port=None takes a free one)"
                )
            self.port = free_port(self.host)
        if self.log_path is None:
            descriptor, name = tempfile.mkstemp(prefix=f"envgym-sglang-{self.port}-", suffix=".log")
            os.close(descriptor)
            self.log_path = Path(name)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        server = [str(python), "-m", "sglang.launch_server", *self._arguments]
        server += ["--host", self.host, "--port", str(self.port), *self._extra_args]
        supervisor = [sys.executable, "-I", "-S", sglang_supervisor.__file__]
        self._owner = os.getpid()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*supervisor, str(self._owner), str(STOP_GRACE_S[self.device]), *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=server_environment(self.device, self._threads),
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
        timeout_s = self.startup_timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        shown = sys.stderr.isatty()
        try:
            while not is_healthy(self.url):
                elapsed = time.monotonic() - started
                self.check()
                if elapsed > timeout_s:
                    raise ServerError(
                        f"SGLang on {self.device} was not healthy after {timeout_s:.0f} s; give it more "
                        f"(startup_timeout_s, --timeout) or look into its log. {self._tail()}"
                    )
                if shown:
                    print(f"\rstarting SGLang on {self.device} ({elapsed:.0f} s) ...", end="", file=sys.stderr)
                    sys.stderr.flush()
                time.sleep(POLL_S)
        finally:
            if shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self.check()
        if self.device == "cpu":
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
        tail = self._tail()
        if "address already in use" in tail or "Address already in use" in tail:
            raise ServerError(f"Port {self.port} of {self.host} was taken while SGLang started; start it again. {tail}")
        how = f"was killed by {signal.Signals(status - 128).name}" if status > 128 else f"ended with status {status}"
        raise ServerError(f"SGLang on {self.device} {how}. {tail}")

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
                process.wait(STOP_GRACE_S[self.device] + 10)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def bind_error(host: str, port: int) -> OSError | None:
    """What keeps a server from listening there now; None if nothing does."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError as error:
            return error
    return None


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


def _check_whole(name: str, value: int, lowest: int, highest: int | None = None, hint: str = "") -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < lowest or (highest is not None and value > highest):
        allowed = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise ValueError(f"{name} must be a whole number {allowed}{hint}, got {value!r}")


def _check_host(host: str) -> None:
    """Any port of it can be listened on, or it is no address of this machine."""
    try:
        problem: Exception | None = bind_error(host, 0)
    except UnicodeError as error:  # a name that cannot be looked up
        problem = error
    if problem is not None:
        raise ValueError(
            f"host must be an IPv4 address of this machine, such as 127.0.0.1 (this machine alone) or 0.0.0.0 (the "
            f"whole network), got '{host}'"
        )
