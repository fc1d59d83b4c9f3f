"""The settings of a server: the arguments they become, and those that are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envgym.cli import main
from envgym.engines import SGLangServer
from envgym.engines.sglang import server as sglang_server
from envgym.engines.sglang.settings import ServerSettings, default_cpu_tokens, server_arguments
from envgym.errors import ServerError

SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "max_position_embeddings")
TINY = dict(zip(SIZES, (4, 2, 16, 2, 1024), strict=True))
QWEN3_0_6B = dict(zip(SIZES, (16, 8, 128, 28, 40960), strict=True))
COMMON = [
    *("--model-path", "models/m", "--served-model-name", "m"),
    *("--sampling-defaults", "openai", "--random-seed", "0", "--log-level-http", "warning"),
]


def flags(device: Any = "cuda", **changes: Any) -> list[str]:
    return server_arguments(Path("models/m"), TINY, ServerSettings(device=device, **changes))


def without_device(arguments: list[str], device: str) -> list[str]:
    where = arguments.index("--device")
    assert arguments[where + 1] == device
    return arguments[:where] + arguments[where + 2 :]


def test_a_gpu_of_its_own_is_nearly_filled_and_computes_in_bfloat16() -> None:
    expected = [*COMMON, "--dtype", "bfloat16", "--mem-fraction-static", "0.85"]
    assert without_device(flags("cuda"), "cuda") == expected


def test_a_shared_gpu_leaves_room_for_the_learner() -> None:
    arguments = flags("cuda", memory_saver=True)
    assert arguments[-3:] == ["--mem-fraction-static", "0.6", "--enable-memory-saver"]
    assert "0.5" in flags("cuda", memory_saver=True, mem_fraction=0.5)


def test_what_is_asked_for_on_a_gpu_is_passed_on() -> None:
    asked: dict[str, tuple[str, Any]] = {
        "--dtype float16": ("dtype", "float16"),
        "--context-length 4096": ("context_length", 4096),
        "--mem-fraction-static 0.7": ("mem_fraction", 0.7),
        "--max-total-tokens 100000": ("max_total_tokens", 100_000),
        "--max-running-requests 64": ("max_running_requests", 64),
        "--enable-deterministic-inference": ("deterministic", True),
        "--tp-size 2": ("tensor_parallel", 2),
        "--skip-tokenizer-init": ("tokenizer", False),
        "--random-seed 3": ("seed", 3),
    }
    text = " ".join(flags("cuda", **dict(asked.values())))
    for wanted in asked:
        assert wanted in text
    assert "--enable-memory-saver" not in text


def test_a_server_on_a_cpu_needs_no_compiled_kernels() -> None:
    expected = [
        *COMMON,
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32"),
        *("--disable-overlap-schedule", "--sleep-on-idle", "--skip-server-warmup"),
        *("--max-total-tokens", "262144", "--max-running-requests", "256"),
    ]
    assert without_device(flags("cpu"), "cpu") == expected


def test_the_cache_on_a_cpu_fits_into_two_gibibytes_and_holds_one_context() -> None:
    assert default_cpu_tokens(TINY) == 262_144
    small_context = {**QWEN3_0_6B, "max_position_embeddings": 2048}
    assert default_cpu_tokens(small_context) == 2 * 2**30 // (2 * 4 * 28 * 8 * 128)
    assert default_cpu_tokens(QWEN3_0_6B) == 40_960
    assert default_cpu_tokens(QWEN3_0_6B, context_length=20_000) == 20_000


@pytest.mark.parametrize(
    ("device", "change", "message"),
    [
        ("tpu", {}, "device.*\n.*'cpu' or 'cuda'"),
        ("cuda", {"dtype": "int8"}, "dtype.*\n.*'float32', 'bfloat16' or 'float16'"),
        ("cuda", {"mem_fraction": 85}, "mem_fraction.*\n.*less than 1"),
        ("cuda", {"tensor_parallel": 0}, "tensor_parallel.*\n.*greater than or equal to 1"),
        ("cpu", {"deterministic": True}, "deterministic needs device='cuda'"),
        ("cpu", {"memory_saver": True}, "memory_saver needs device='cuda'"),
        ("cpu", {"mem_fraction": 0.5}, "on a CPU the cache is set by max_total_tokens"),
        ("cpu", {"tensor_parallel": 2}, "on a CPU start several servers"),
    ],
)
def test_what_does_not_go_together_is_refused(device: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flags(device, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port": 29_999_999}, r"port\n.*less than or equal to 65535"),
        *(({"port": port}, r"port\n") for port in (-3, 0)),
        ({"threads": 0}, r"threads\n.*greater than or equal to 1"),
        ({"threads": -2}, r"threads\n"),
        *(({name: 0}, rf"{name}\n") for name in ("context_length", "max_total_tokens", "max_running_requests")),
        ({"max_running_requests": 2.5}, r"max_running_requests\n.*fractional part"),
        ({"seed": -1}, r"seed\n.*greater than or equal to 0"),
        ({"seed": 2**32}, r"seed\n.*less than or equal to 4294967295"),
        ({"startup_timeout_s": -1.0}, r"startup_timeout_s\n.*greater than 0"),
        ({"startup_timeout_s": float("nan")}, r"startup_timeout_s\n.*finite number"),
        ({"tensor_paralel": 1}, r"tensor_paralel\n.*not permitted"),
        ({"host": "203.0.113.7"}, "host must be an IPv4 address of this machine"),
        *(({"host": host}, "host must be") for host in ("::1", "a..b")),
        ({"host": "203.0.113.7", "port": 30_000}, "host must be"),
        ({"extra_args": "--enable-metrics"}, r"extra_args\n.*tuple"),
    ],
)
def test_arguments_out_of_range_are_refused(tiny_model_folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SGLangServer(tiny_model_folder, "cpu", **change)


@pytest.mark.parametrize(
    "arguments",
    [
        *("--port 29999999", "--port -3", "--threads 0", "--context-length 0", "--max-total-tokens -1", "--tp 0"),
        *("--max-running-requests 0", "--seed -1", "--timeout -1", "--timeout nan", "--host 203.0.113.7"),
    ],
)
def test_the_command_says_so_in_one_line(
    tiny_model_folder: Path, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tiny_model_folder), "--device", "cpu", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("envgym: ") and (" should be " in line or " must be " in line)


def test_they_are_refused_before_anything_is_installed(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVGYM_SGLANG_VENV", str(tmp_path / "venv"))
    assert main(["serve", str(tiny_model_folder), "--install", "--device", "cpu", "--port", "-3"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_not_for_everybody_is_not_called_taken(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_server, "sglang_python", lambda device: Path("python"))
    server = SGLangServer(tiny_model_folder, "cpu", port=80)
    monkeypatch.setattr(sglang_server, "bind_error", lambda host, port: PermissionError(13, "Permission denied"))
    with pytest.raises(ServerError, match=r"Port 80 of 127.0.0.1 cannot be listened on \(Permission denied\); choose"):
        server.launch()
