"""`envgym serve`: an SGLang server on a model folder, for as long as the command runs."""

from __future__ import annotations

import argparse
import signal
import sys
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envgym.engines.sglang.install import Device
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
    serve.add_argument(
        "--tp", dest="tensor_parallel", type=int, default=1, metavar="N", help="GPUs that share the model (default 1)"
    )
    serve.add_argument(
        "--no-tokenizer", dest="tokenizer", action="store_false", help="token ids only, no OpenAI endpoints"
    )
    serve.add_argument("--threads", type=int, default=1, help="threads on a CPU (default 1, best for small models)")
    serve.add_argument("--seed", type=int, default=0, help="seed of sampling that has none of its own (default 0)")
    serve.add_argument("--log", dest="log_path", type=Path, help="file for SGLang's output (default: a temporary one)")
    serve.add_argument(
        "--timeout",
        dest="startup_timeout_s",
        type=float,
        default=600.0,
        help="most seconds until it is healthy (default 600)",
    )
    serve.add_argument(
        "--sglang-arg",
        dest="extra_args",
        action="append",
        default=[],
        metavar="ARG",
        help="a further one of SGLang: --sglang-arg=--enable-metrics",
    )
    serve.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    """Serves until the command is interrupted or the server ends, or installs SGLang."""
    if arguments.model is None and not arguments.install:
        raise ValueError("name a model folder to serve, or --install SGLang")
    device: Device = arguments.device or ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
    # Made first: what is wrong with the arguments or the model shows before an installation of minutes.
    server = None if arguments.model is None else _server(arguments, device)
    if arguments.install:
        from envgym.engines.sglang.install import install

        print(f"SGLang for {device}: {install(device)}", file=sys.stderr)
    return 0 if server is None else _run(server)


def _server(arguments: argparse.Namespace, device: Device) -> SGLangServer:
    """The server, whose parameters the options are named after."""
    from envgym.engines.sglang.server import SGLangServer
    from envgym.training.run_folder import MODEL

    trained = Path(arguments.model) / MODEL
    given = {name: value for name, value in vars(arguments).items() if name in signature(SGLangServer).parameters}
    model = trained if (trained / "config.json").is_file() else Path(arguments.model)
    return SGLangServer(**given | {"model": model, "device": device, "port": arguments.port or None})


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
