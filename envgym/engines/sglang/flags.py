"""The flags of a server that samples for reinforcement learning, and why each is set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgym.engines.sglang.install import Device

DTYPES = ("float32", "bfloat16", "float16")
CPU_CACHE_BYTES = 2 * 2**30
MAX_CPU_CACHE_TOKENS = 262_144
MAX_CPU_REQUESTS = 256


def server_arguments(
    model: Path,
    device: Device,
    *,
    config: Mapping[str, Any],
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
) -> list[str]:
    """Arguments of `sglang.launch_server`, without host and port. What they mean: `SGLangServer`.

    The radix cache stays on everywhere: each turn of an episode extends the last, and only its new tokens are computed.

    Args:
        model: Folder of the model.
        device: "cpu" or "cuda".
        config: The model's `config.json`.

    Raises:
        ValueError: A value is out of range, or the device does not have it.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', got '{device}'")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got '{dtype}'")
    if mem_fraction is not None and not 0 < mem_fraction < 1:
        raise ValueError(f"mem_fraction is a share of the GPU's memory between 0 and 1, got {mem_fraction}")
    if tensor_parallel < 1:
        raise ValueError(f"tensor_parallel must be at least 1, got {tensor_parallel}")
    arguments = ["--model-path", str(model), "--served-model-name", model.name, "--device", device]
    # Requests say how to sample; what they leave out must not come from the model's generation_config.json.
    arguments += ["--sampling-defaults", "openai", "--random-seed", str(seed)]
    # A line in the log for every request would be the most of it.
    arguments += ["--log-level-http", "warning"]
    if device == "cpu":
        arguments += _cpu_arguments(config, dtype, context_length, max_total_tokens, max_running_requests)
        for name, value in (("deterministic", deterministic), ("memory_saver", memory_saver)):
            if value:
                raise ValueError(f"{name} needs device='cuda': on a CPU SGLang does not have it")
        if mem_fraction is not None:
            raise ValueError("mem_fraction is for device='cuda'; on a CPU the cache is set by max_total_tokens")
        if tensor_parallel != 1:
            raise ValueError("tensor_parallel needs device='cuda'; on a CPU start several servers")
    else:
        # bfloat16 is what the learner computes in on a GPU; another type here would be one more gap between the
        # log-probabilities of sampling and those of training.
        arguments += ["--dtype", dtype or "bfloat16"]
        # A server alone on its GPU takes nearly all of it; one that shares it leaves room for the learner's own state.
        arguments += ["--mem-fraction-static", str(mem_fraction or (0.6 if memory_saver else 0.85))]
        if max_total_tokens is not None:
            arguments += ["--max-total-tokens", str(max_total_tokens)]
        if max_running_requests is not None:
            arguments += ["--max-running-requests", str(max_running_requests)]
        if deterministic:
            # The log-probability of a token otherwise depends on the batch it was sampled in.
            arguments += ["--enable-deterministic-inference"]
        if memory_saver:
            # Weights and cache can be released while the learner updates on the same GPU.
            arguments += ["--enable-memory-saver"]
        if tensor_parallel > 1:
            arguments += ["--tp-size", str(tensor_parallel)]
    if context_length is not None:
        arguments += ["--context-length", str(context_length)]
    if not tokenizer:
        arguments += ["--skip-tokenizer-init"]
    return arguments


def _cpu_arguments(
    config: Mapping[str, Any],
    dtype: str | None,
    context_length: int | None,
    max_total_tokens: int | None,
    max_running_requests: int | None,
) -> list[str]:
    if max_total_tokens is None:
        max_total_tokens = default_cpu_tokens(config, context_length)
    return [
        # Kernels in torch alone: SGLang's own for the CPU need instructions (AMX) that few machines have.
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        # What the learner computes in on a CPU, so that log-probabilities agree to 1e-6.
        *("--dtype", dtype or "float32"),
        # The overlapping scheduler hides the latency of a GPU; here it competes with the model for the same cores.
        "--disable-overlap-schedule",
        # A server without requests otherwise polls all the time, and takes a core from the learner.
        "--sleep-on-idle",
        # Without these the cache takes most of the machine's memory, and its index 4096 times the context length.
        *("--max-total-tokens", str(max_total_tokens)),
        *("--max-running-requests", str(max_running_requests or MAX_CPU_REQUESTS)),
        # There is nothing to compile or capture that a first request would have to wait for.
        "--skip-server-warmup",
    ]


def default_cpu_tokens(config: Mapping[str, Any], context_length: int | None = None) -> int:
    """Tokens whose keys and values fit into 2 GiB as float32, but one whole context at least, and 262,144 at most."""
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size") or 1) // heads)
    token_bytes = 2 * 4 * int(config.get("num_hidden_layers") or 1) * kv_heads * max(head_dim, 1)
    least = context_length or int(config.get("max_position_embeddings") or 4096)
    return max(least, min(MAX_CPU_CACHE_TOKENS, CPU_CACHE_BYTES // token_bytes))
