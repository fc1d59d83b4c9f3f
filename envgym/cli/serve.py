"""`envgym serve`: an SGLang server on a model folder, for as long as the command runs."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from envgym.engines.sglang.settings import ServerSettings

if TYPE_CHECKING:
    from envgym.engines.sglang.server import SGLangServer

WATCH_S = 1.0
_OPTIONS = {
    "tensor_parallel": "--tp",
    "tokenizer": "--no-tokenizer",
    "extra_args": "--sglang-arg",
    "log_path": "--log",
    "startup_timeout_s": "--timeout",
}
"""Options that are not called as the field of `ServerSettings` that they set."""


def add_serve_command(commands: Any) -> None:
    """Adds the command and its arguments to those of `envgym`."""
    serve = commands.add_parser("serve", help="serve a model with SGLang, or install SGLang (--install)")
    serve.add_argument("model", nargs="?", help="a model folder, or a run folder with a trained model")
    serve.add_argument("--install", action="store_true", help="make SGLang's virtual environment first; once is enough")
    for name, field in ServerSettings.model_fields.items():
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        how: dict[str, Any] = {"metavar": option.strip("-").upper()}
        if isinstance(field.default, bool):
            how = {"action": "store_false" if field.default else "store_true"}
        elif name == "extra_args":
            how = {"action": "append", "metavar": "ARG"}
        elif name == "device":
            how = {"choices": ("cpu", "cuda")}
        serve.add_argument(option, dest=name, default=argparse.SUPPRESS, help=field.description, **how)
    serve.set_defaults(run=_serve, device="cuda" if Path("/dev/nvidiactl").exists() else "cpu", port="30000")


def _serve(arguments: argparse.Namespace) -> int:
    """Serves until the command is interrupted or the server ends, or installs SGLang."""
    if arguments.model is None and not arguments.install:
        raise ValueError("name a model folder to serve, or --install SGLang")
    # Made first: what is wrong with the arguments or the model shows before an installation of minutes.
    server = None if arguments.model is None else _server(arguments)
    if arguments.install:
        from envgym.engines.sglang.install import install

        print(f"SGLang for {arguments.device}: {install(arguments.device)}", file=sys.stderr)
    return 0 if server is None else _run(server)


def _server(arguments: argparse.Namespace) -> SGLangServer:
    from envgym.engines.sglang.server import SGLangServer
    from envgym.training.run_folder import MODEL

    trained = Path(arguments.model) / MODEL
    model = trained if (trained / "config.json").is_file() else Path(arguments.model)
    given = {name: value for name, value in vars(arguments).items() if name in ServerSettings.model_fields}
    return SGLangServer(model, **given | {"port": None if given["port"] == "0" else given["port"]})


def _run(server: SGLangServer) -> int:
    """Serves until SIGTERM or Ctrl-C, or until the server fails."""
    told: list[int] = []

    def on_term(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, on_term)
    try:
        with server:
            print(f"{server.url} serves {server.model} on {server.settings.device}", flush=True)
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
