"""The settings of an SGLang server that samples for reinforcement learning, and the arguments they become."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

CPU_CACHE_BYTES = 2 * 2**30
MAX_CPU_CACHE_TOKENS = 262_144
MAX_CPU_REQUESTS = 256


class ServerSettings(BaseModel):
    """How a server runs: what `SGLangServer` takes, and the options of `envgym serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    device: Literal["cpu", "cuda"] = Field(
        "cuda", description="cuda or cpu (default: cuda where there is an NVIDIA GPU)"
    )
    host: str = Field(
        "127.0.0.1",
        description="IPv4 address, or name of one, to listen on (default 127.0.0.1); the server has no password: any "
        "other lets the network use it and replace its weights",
    )
    port: int | None = Field(
        None, ge=1, le=65535, description="port to listen on; a free one when None (`envgym serve`: 30000, any for 0)"
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, bfloat16 or float16 (default: bfloat16 with CUDA, float32 on a CPU)"
    )
    context_length: int | None = Field(None, ge=1, description="most tokens of a sequence (default: the model's)")
    mem_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the GPU's memory for weights and cache (default 0.85, with a memory saver 0.6)",
    )
    max_total_tokens: int | None = Field(
        None, ge=1, description="tokens in the cache (default: on a CPU what fits into 2 GiB, with CUDA what fits)"
    )
    max_running_requests: int | None = Field(
        None, ge=1, description="requests that run at once (default: on a CPU 256, with CUDA what SGLang finds)"
    )
    deterministic: bool = Field(
        False, description="results do not depend on the batch, and seeds of requests act (CUDA, slower)"
    )
    memory_saver: bool = Field(False, description="can give its GPU memory to a learner and take it back (CUDA)")
    tensor_parallel: int = Field(1, ge=1, description="GPUs that share the model (default 1)")
    tokenizer: bool = Field(True, description="load none: token ids only, no OpenAI endpoints")
    # SGLang also seeds NumPy, which takes no larger one.
    seed: int = Field(0, ge=0, le=2**32 - 1, description="seed of sampling that has none of its own (default 0)")
    threads: int | None = Field(
        1, ge=1, description="threads of linear algebra on a CPU (default 1, the fastest by far for small models)"
    )
    extra_args: tuple[str, ...] = Field(
        (), description="a further argument of SGLang, which wins: --sglang-arg=--enable-metrics"
    )
    log_path: Path | None = Field(
        None, description="file for SGLang's output (default: a temporary one, removed after an orderly stop)"
    )
    startup_timeout_s: float = Field(600.0, gt=0, description="most seconds until it is healthy (default 600)")

    @field_validator("host")
    @classmethod
    def _is_here(cls, host: str) -> str:
        try:
            problem: Exception | None = bind_error(host, 0)  # any port of it can be listened on, or it is not here
        except UnicodeError as error:  # a name that cannot be looked up
            problem = error
        if problem is not None:
            raise ValueError(
                "host must be an IPv4 address of this machine, such as 127.0.0.1 (this machine alone) or 0.0.0.0 (the "
                "whole network)"
            )
        return host

    @model_validator(mode="after")
    def _device_has_it(self) -> ServerSettings:
        if self.device == "cpu":
            if self.deterministic or self.memory_saver:
                name = "deterministic" if self.deterministic else "memory_saver"
                raise ValueError(f"{name} needs device='cuda': on a CPU SGLang does not have it")
            if self.mem_fraction is not None:
                raise ValueError("mem_fraction is for device='cuda'; on a CPU the cache is set by max_total_tokens")
            if self.tensor_parallel != 1:
                raise ValueError("tensor_parallel needs device='cuda'; on a CPU start several servers")
        return self


def server_arguments(model: Path, config: Mapping[str, Any], settings: ServerSettings) -> list[str]:
    """Arguments of `sglang.launch_server`, without host and port.

    The radix cache stays on everywhere: each turn of an episode extends the last, and only its new tokens are computed.

    Args:
        model: Folder of the model.
        config: The model's `config.json`.
        settings: How the server runs.
    """
    arguments = ["--model-path", str(model), "--served-model-name", model.name, "--device", settings.device]
    # Requests say how to sample; what they leave out must not come from the model's generation_config.json.
    arguments += ["--sampling-defaults", "openai", "--random-seed", str(settings.seed)]
    # A line in the log for every request would be the most of it.
    arguments += ["--log-level-http", "warning"]
    tokens, requests = settings.max_total_tokens, settings.max_running_requests
    if settings.device == "cpu":
        tokens = tokens or default_cpu_tokens(config, settings.context_length)
        requests = requests or MAX_CPU_REQUESTS
        # Kernels in torch alone: SGLang's own for the CPU need instructions (AMX) that few machines have.
        arguments += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        # What the learner computes in on a CPU, so that log-probabilities agree to 1e-6.
        arguments += ["--dtype", settings.dtype or "float32"]
        # The overlapping scheduler hides the latency of a GPU; here it competes with the model for the same cores.
        arguments += ["--disable-overlap-schedule"]
        # A server without requests otherwise polls all the time, and takes a core from the learner.
        arguments += ["--sleep-on-idle"]
        # There is nothing to compile or capture that a first request would have to wait for.
        arguments += ["--skip-server-warmup"]
    else:
        # bfloat16 is what the learner computes in on a GPU; another type here would be one more gap between the
        # log-probabilities of sampling and those of training.
        arguments += ["--dtype", settings.dtype or "bfloat16"]
        # A server alone on its GPU takes nearly all of it; one that shares it leaves room for the learner's own state.
        share = settings.mem_fraction or (0.6 if settings.memory_saver else 0.85)
        arguments += ["--mem-fraction-static", str(share)]
    # On a CPU the cache would otherwise take most of the machine's memory, and its index 4096 times the context length.
    arguments += ["--max-total-tokens", str(tokens)] if tokens else []
    arguments += ["--max-running-requests", str(requests)] if requests else []
    if settings.deterministic:
        # The log-probability of a token otherwise depends on the batch it was sampled in.
        arguments += ["--enable-deterministic-inference"]
    if settings.memory_saver:
        # Weights and cache can be released while the learner updates on the same GPU.
        arguments += ["--enable-memory-saver"]
    if settings.tensor_parallel > 1:
        arguments += ["--tp-size", str(settings.tensor_parallel)]
    if settings.context_length is not None:
        arguments += ["--context-length", str(settings.context_length)]
    if not settings.tokenizer:
        arguments += ["--skip-tokenizer-init"]
    return arguments


def default_cpu_tokens(config: Mapping[str, Any], context_length: int | None = None) -> int:
    """Tokens whose keys and values fit into 2 GiB as float32, but one whole context at least, and 262,144 at most."""
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size") or 1) // heads)
    token_bytes = 2 * 4 * int(config.get("num_hidden_layers") or 1) * kv_heads * max(head_dim, 1)
    least = context_length or int(config.get("max_position_embeddings") or 4096)
    return max(least, min(MAX_CPU_CACHE_TOKENS, CPU_CACHE_BYTES // token_bytes))


def bind_error(host: str, port: int) -> OSError | None:
    """What keeps a server from listening there now; None if nothing does."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError as error:
            return error
    return None
