"""The flags a server is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envgym.policies.sglang_flags import default_cpu_tokens, server_arguments

TINY = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
}
QWEN3_0_6B = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 28,
    "max_position_embeddings": 40960,
}
COMMON = [
    *("--model-path", "models/m", "--served-model-name", "m"),
    *("--sampling-defaults", "openai", "--random-seed", "0", "--log-level-http", "warning"),
]


def flags(device: Any = "cuda", **changes: Any) -> list[str]:
    return server_arguments(Path("models/m"), device, config=TINY, **changes)


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
    arguments = flags(
        "cuda",
        dtype="float16",
        context_length=4096,
        mem_fraction=0.7,
        max_total_tokens=100_000,
        max_running_requests=64,
        deterministic=True,
        tensor_parallel=2,
        tokenizer=False,
        seed=3,
    )
    text = " ".join(arguments)
    for wanted in (
        "--dtype float16",
        "--context-length 4096",
        "--mem-fraction-static 0.7",
        "--max-total-tokens 100000",
        "--max-running-requests 64",
        "--enable-deterministic-inference",
        "--tp-size 2",
        "--skip-tokenizer-init",
        "--random-seed 3",
    ):
        assert wanted in text
    assert "--enable-memory-saver" not in text


def test_a_server_on_a_cpu_needs_no_compiled_kernels() -> None:
    expected = [
        *COMMON,
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--dtype", "float32"),
        *("--disable-overlap-schedule", "--sleep-on-idle", "--max-total-tokens", "262144"),
        *("--max-running-requests", "256", "--skip-server-warmup"),
    ]
    assert without_device(flags("cpu"), "cpu") == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_radix_cache_stays_on(device: str) -> None:
    assert not any("radix" in word for word in flags(device))


def test_the_cache_on_a_cpu_fits_into_two_gibibytes_and_holds_one_context() -> None:
    assert default_cpu_tokens(TINY) == 262_144
    small_context = {**QWEN3_0_6B, "max_position_embeddings": 2048}
    assert default_cpu_tokens(small_context) == 2 * 2**30 // (2 * 4 * 28 * 8 * 128)
    assert default_cpu_tokens(QWEN3_0_6B) == 40_960
    assert default_cpu_tokens(QWEN3_0_6B, context_length=20_000) == 20_000


@pytest.mark.parametrize(
    ("device", "change", "message"),
    [
        ("tpu", {}, "device must be 'cpu' or 'cuda', got 'tpu'"),
        ("cuda", {"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ("cuda", {"mem_fraction": 85}, "between 0 and 1, got 85"),
        ("cuda", {"tensor_parallel": 0}, "tensor_parallel must be at least 1, got 0"),
        ("cpu", {"deterministic": True}, "deterministic needs device='cuda'"),
        ("cpu", {"memory_saver": True}, "memory_saver needs device='cuda'"),
        ("cpu", {"mem_fraction": 0.5}, "on a CPU the cache is set by max_total_tokens"),
        ("cpu", {"tensor_parallel": 2}, "on a CPU start several servers"),
    ],
)
def test_what_does_not_go_together_is_refused(device: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flags(device, **change)
