"""A real SGLang server on the CPU: what it answers, and what becomes of it when something goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import eventually, members, server_of

from envgym.cli import main
from envgym.engines import SGLangServer
from envgym.engines.sglang.client import SGLangClient, call, is_healthy
from envgym.errors import ServerError

pytestmark = pytest.mark.slow

CLIENT = """
import sys, time
from envgym.engines import SGLangServer
server = SGLangServer(sys.argv[1], "cpu", log_path=sys.argv[2]).start()
print(server.process.pid, flush=True)
time.sleep(600)
"""


def test_a_paused_server_is_healthy(sglang_server: SGLangServer) -> None:
    client = SGLangClient(sglang_server.url)
    client.pause("retract")
    try:
        assert is_healthy(client.url)
    finally:
        client.resume()
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
    assert call(client.url, "POST", "/generate", body, timeout_s=60)["output_ids"]


def test_a_flush_of_the_cache_does_not_walk_through_all_objects_of_the_server(sglang_server: SGLangServer) -> None:
    """Which takes 350 ms and more; the shortest of five is not delayed by anything else."""
    client, seconds = SGLangClient(sglang_server.url), []
    for _ in range(5):
        started = time.perf_counter()
        client.flush_cache()
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.1


def test_it_speaks_the_openai_protocol_under_the_name_of_the_folder(sglang_server: SGLangServer) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = sglang_server.url
    assert [model["id"] for model in call(url, "GET", "/v1/models", timeout_s=60)["data"]] == ["tiny"]
    assert call(url, "POST", "/v1/chat/completions", body, timeout_s=60)["usage"]["completion_tokens"] <= 4


def test_requests_that_say_nothing_of_sampling_get_no_defaults_of_the_model(
    sglang_server: SGLangServer, tiny_model_folder: Path
) -> None:
    assert (tiny_model_folder / "generation_config.json").exists()
    assert SGLangClient(sglang_server.url).server_info()["sampling_defaults"] == "openai"


def test_its_processes_are_in_a_session_of_their_own_and_see_the_stand_in(sglang_server: SGLangServer) -> None:
    assert sglang_server.process is not None
    session = sglang_server.process.pid
    assert session != os.getsid(0)
    assert {"sglang::scheduler", "sglang::detokenizer"} <= set(members(session).values())
    environment = Path(f"/proc/{server_of(session)}/environ").read_bytes().decode().split("\0")
    assert any(line.startswith("PYTHONPATH=") and line.endswith("sglang/stand_in") for line in environment)
    assert "sglang/stand_in" not in os.environ.get("PYTHONPATH", "")
    assert not any("sglang/stand_in" in entry for entry in sys.path)


def test_a_taken_port_is_named_before_anything_starts(
    sglang_server: SGLangServer, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = SGLangServer(tiny_model_folder, "cpu", port=sglang_server.port)
    started = time.monotonic()
    with pytest.raises(ServerError, match=rf"Port {sglang_server.port} of 127.0.0.1 is taken.*choose another port"):
        second.start()
    assert time.monotonic() - started < 1
    assert second.process is None
    assert main(["serve", str(tiny_model_folder), "--device", "cpu", "--port", str(sglang_server.port)]) == 2
    assert f"envgym: Port {sglang_server.port} of 127.0.0.1 is taken" in capsys.readouterr().err


def test_a_start_that_takes_too_long_says_so_and_leaves_nothing(
    requires_sglang: None, tiny_model_folder: Path, tmp_path: Path
) -> None:
    server = SGLangServer(tiny_model_folder, "cpu", startup_timeout_s=0.3, log_path=tmp_path / "log")
    server.launch()
    assert server.process is not None
    session = server.process.pid
    with pytest.raises(ServerError, match=r"was not healthy after 0 s; give it more \(startup_timeout_s, --timeout\)"):
        server.wait_until_healthy()
    server.stop()
    assert members(session) == {}


@dataclass
class Starting:
    """Servers that start side by side, each of which comes to a bad end."""

    folder: Path
    """Their logs: `client.log`, `command.log`, `misfit.log`."""
    client: subprocess.Popen[str]
    """A program that uses `SGLangServer`."""
    command: subprocess.Popen[str]
    """`envgym serve` on any free port."""
    misfit: SGLangServer
    """A server on a folder whose weights are for a smaller vocabulary than its configuration says."""


@pytest.fixture(scope="module")
def starting(
    requires_sglang: None, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Starting]:
    folder = tmp_path_factory.mktemp("starting")
    shutil.copytree(tiny_model_folder, folder / "misfit")
    config = json.loads((folder / "misfit" / "config.json").read_text())
    config["vocab_size"] += 64
    (folder / "misfit" / "config.json").write_text(json.dumps(config))
    misfit = SGLangServer(folder / "misfit", "cpu", log_path=folder / "misfit.log")
    misfit.launch()
    client = [sys.executable, "-c", CLIENT, str(tiny_model_folder), str(folder / "client.log")]
    command = [sys.executable, "-m", "envgym.cli", "serve", str(tiny_model_folder), "--device", "cpu"]
    command += ["--port", "0", "--log", str(folder / "command.log")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(client, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        try:
            yield Starting(folder, one, two, misfit)
        finally:
            for process in (one, two):
                process.terminate()
            misfit.stop()


def test_a_server_that_ends_as_it_starts_is_noticed_with_the_end_of_its_log(starting: Starting) -> None:
    assert starting.misfit.process is not None
    session = starting.misfit.process.pid
    with pytest.raises(ServerError) as failure:
        starting.misfit.wait_until_healthy()
    message, log = str(failure.value), starting.folder / "misfit.log"
    assert re.match(rf"SGLang on cpu [^.]+\. The end of its log, '{log}':\n", message)
    assert len(message.splitlines()) == 31
    assert log.read_text().splitlines()[-1] in message
    assert "loaded_weight" in message
    assert members(session) == {}


def test_no_process_outlives_a_client_that_is_killed(starting: Starting) -> None:
    assert starting.client.stdout is not None
    session = int(starting.client.stdout.readline())
    assert len(members(session)) >= 4  # supervisor, server, scheduler, detokenizer
    starting.client.kill()
    assert eventually(lambda: not members(session)), members(session)


def test_a_killed_server_ends_the_command_with_the_reason(starting: Starting) -> None:
    command, log = starting.command, starting.folder / "command.log"
    assert command.stdout is not None
    url = command.stdout.readline().split()[0]
    assert is_healthy(url)
    (supervisor,) = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    os.kill(server_of(int(supervisor)), signal.SIGKILL)
    _, errors = command.communicate(timeout=30)
    assert command.returncode == 2
    assert f"envgym: SGLang on cpu was killed by SIGKILL. The end of its log, '{log}':" in errors
    assert "ready to roll" in errors
    assert members(int(supervisor)) == {}
