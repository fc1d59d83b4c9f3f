"""`envgym serve`: an SGLang server on a model folder, for as long as the command runs."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envgym.engines.sglang.server import SGLangServer

WATCH_S = 1.0


def add_serve_command(commands: Any) -> None:
    """Adds the command and its arguments to those of `envgym`."""
    serve = commands.add_parser("serve", help="serve a model with SGLang, or install SGLang (--install)")
    serve.add_argument("model", nargs="?", help="a model folder, or a run folder with a trained model")
    serve.add_argument("--install", action="store_true", help="make SGLang's virtual environment first; once is enough")
    serve.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is an NVIDIA GPU, else cpu")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=30000, help="port to listen on (default 30000; 0: any free one)")
    serve.add_argument("--dtype", help="float32, bfloat16 or float16 (default: bfloat16 with CUDA, float32 on a CPU)")
    serve.add_argument("--context-length", type=int, help="most tokens of a sequence (default: the model's)")
    serve.add_argument("--mem-fraction", type=float, help="share of the GPU's memory for weights and cache")
    serve.add_argument("--max-total-tokens", type=int, help="tokens in the cache (default on a CPU: 2 GiB of them)")
    serve.add_argument("--max-running-requests", type=int, help="requests that run at once")
    serve.add_argument("--deterministic", action="store_true", help="results independent of the batch (CUDA, slower)")
    serve.add_argument("--memory-saver", action="store_true", help="can lend its GPU memory to a learner (CUDA)")
    serve.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs that share the model (default 1)")
    serve.add_argument("--no-tokenizer", action="store_true", help="token ids only, no OpenAI endpoints")
    serve.add_argument("--threads", type=int, default=1, help="threads on a CPU (default 1, best for small models)")
    serve.add_argument("--seed", type=int, default=0, help="seed of sampling that has none of its own (default 0)")
    serve.add_argument("--log", type=Path, help="file for SGLang's output (default: a temporary one)")
    serve.add_argument("--timeout", type=float, default=600.0, help="most seconds until it is healthy (default 600)")
    serve.add_argument(
        "--sglang-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="a further one of SGLang: --sglang-arg=--enable-metrics",
    )
    serve.set_defaults(run=serve_model)


def serve_model(arguments: argparse.Namespace) -> int:
    """Runs the command until it is interrupted or the server ends.

    Raises:
        ValueError: No model was named, or arguments are out of range or do not fit together.
        EnvGymError: SGLang is not installed, the model cannot be served, or the server failed.
    """
    if arguments.model is None and not arguments.install:
        raise ValueError("name a model folder to serve, or --install SGLang")
    device = arguments.device or default_device()
    # Made first: what is wrong with the arguments or the model shows before an installation of minutes.
    server = None if arguments.model is None else _server(arguments, device)
    if arguments.install:
        from envgym.engines.sglang.install import install

        print(f"SGLang for {device}: {install(device)}", file=sys.stderr)
    return 0 if server is None else _run(server)


def _server(arguments: argparse.Namespace, device: Any) -> SGLangServer:
    from envgym.engines.sglang.server import SGLangServer

    return SGLangServer(
        model_of(arguments.model),
        device,
        host=arguments.host,
        port=arguments.port or None,
        dtype=arguments.dtype,
        context_length=arguments.context_length,
        mem_fraction=arguments.mem_fraction,
        max_total_tokens=arguments.max_total_tokens,
        max_running_requests=arguments.max_running_requests,
        deterministic=arguments.deterministic,
        memory_saver=arguments.memory_saver,
        tensor_parallel=arguments.tp,
        tokenizer=not arguments.no_tokenizer,
        threads=arguments.threads,
        seed=arguments.seed,
        extra_args=arguments.sglang_arg,
        log_path=arguments.log,
        startup_timeout_s=arguments.timeout,
    )


def _run(server: SGLangServer) -> int:
    """Serves until SIGTERM or Ctrl-C, or until the server fails."""
    told: list[int] = []

    def on_term(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, on_term)
    try:
        with server:
            print(f"{server.url} serves {server.model} on {server.device}", flush=True)
            print(f"log: {server.log_path}; stop it with Ctrl-C", file=sys.stderr)
            while True:
                server.wait(WATCH_S)
                server.check()
    except KeyboardInterrupt:
        if told:
            return 128 + told[0]
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def model_of(folder: str | Path) -> Path:
    """The model of a run folder, or the folder itself."""
    from envgym.training.run_folder import MODEL

    trained = Path(folder) / MODEL
    return trained if (trained / "config.json").is_file() else Path(folder)


def default_device() -> Any:
    """ "cuda" where the driver of an NVIDIA GPU is, else "cpu"."""
    return "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
