"""The `envgym` command: its parts put together, and what it says when something went wrong."""

from __future__ import annotations

import argparse
import io
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import envgym
from envgym.cli.environments import add_environment_commands
from envgym.cli.evaluation import add_evaluation_commands
from envgym.cli.serve import add_serve_command
from envgym.cli.train import add_training_commands
from envgym.errors import EnvGymError

TRAINING_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "tensorboard")
_NOT_THEIRS = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(envgym.__file__).parent, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib")))
)
"""Folders of code that is not the user's own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status.

    0 is success, 1 that `check` found something, that no episode finished or that there is a bug somewhere, 2 follows a
    clear message, and 130 is an interruption.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign shows another
    with suppress(OSError):  # the folder is gone
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.append(os.getcwd())  # so that the module of `module:id` can be a file here
    arguments = parser().parse_args(argv)
    try:
        status = arguments.run(arguments) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who read the output has enough, like `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("envgym: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return _report(error, debug=arguments.debug)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; what it has parsed has the function `run` of its command."""
    whole = argparse.ArgumentParser(
        prog="envgym", description="Text environments for language-model agents, and their training."
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    add_environment_commands(commands)
    add_serve_command(commands)
    add_evaluation_commands(commands)
    add_training_commands(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return whole


def _report(error: Exception, *, debug: bool) -> int:
    """Says what went wrong; returns the exit status.

    What is told by its message is shown as that and its notes, a bug with the lines of the user's own code that it
    went through.
    """
    expected = isinstance(error, EnvGymError | OSError | ValueError)
    lines = [_message(error), *getattr(error, "__notes__", ())]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in TRAINING_PACKAGES:
        expected, lines = True, [f"this needs {error.name}: pip install 'envgym[train]'"]
    theirs = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    if debug or not (expected or theirs):
        traceback.print_exception(error)
    else:
        if not expected:
            print("".join(traceback.format_list(theirs)), end="", file=sys.stderr)
            lines = [f"{type(error).__name__}: {lines[0]}", *lines[1:], "with --debug the whole traceback is shown"]
        for line in lines:
            print(f"envgym: {line}", file=sys.stderr)
    return 2 if expected else 1


def _message(error: Exception) -> str:
    """The message of an error; of a failed validation one line for each field."""
    from pydantic import ValidationError

    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"'{os.fsdecode(error.filename)}': {error.strerror}"
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    lines = []
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"]) or "configuration"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no such field")
        else:
            got = f" (got {str(entry['input'])[:80]})" if entry["loc"] else ""
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')}{got}")
    return "; ".join(lines)
