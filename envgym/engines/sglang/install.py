"""The virtual environment that SGLang servers run in: where it is, how it is made, and whether it is finished.

SGLang pins versions of torch and transformers that would dictate those of the program that trains, and on a CPU it
needs packages that must not be seen elsewhere; so it is installed apart, and only ever started as a process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from importlib import resources
from pathlib import Path
from typing import Literal

from envgym.errors import MissingDependencyError

Device = Literal["cpu", "cuda"]

SGLANG_VERSION = "0.5.23"
"""The version whose protocol, flags and imports envgym is written for and tested with."""
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "cpu": ("--no-deps", "-r", str(resources.files("envgym.engines.sglang") / "cpu.txt")),
    "cuda": (f"sglang=={SGLANG_VERSION}",),
}
"""What pip installs for a device: every package by its version for a CPU, SGLang with all it asks for with CUDA."""
VENV_VARIABLE = "ENVGYM_SGLANG_VENV"
STAMP = "envgym-sglang.json"
"""Written when a virtual environment is begun, and again when it is finished: what has none is not envgym's."""
STAND_IN = Path(str(resources.files("envgym.engines.sglang"))) / "stand_in"
"""On the path of a server on the CPU, and of nothing else."""


def venv_folder(device: Device) -> Path:
    """Where the virtual environment for a device is or will be.

    The environment variable ENVGYM_SGLANG_VENV names it, or it is `sglang-VERSION-DEVICE` in ENVGYM_CACHE, which is
    `envgym` in XDG_CACHE_HOME or `~/.cache` unless it is set.
    """
    if named := os.environ.get(VENV_VARIABLE):
        return Path(named).expanduser().absolute()
    if not (cache := os.environ.get("ENVGYM_CACHE")):
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "envgym")
    return Path(cache).expanduser().absolute() / f"sglang-{SGLANG_VERSION}-{device}"


def sglang_python(device: Device) -> Path:
    """The Python that runs servers for a device.

    Raises:
        MissingDependencyError: The virtual environment is not there, not finished, holds another version, or is not
            one that envgym made.
    """
    folder = venv_folder(device)
    _check_is_own(folder, device)
    if problem := _problem(folder, device):
        raise MissingDependencyError(f"{problem}; run `envgym serve --install --device {device}`")
    return _python_of(folder)


def install(device: Device) -> Path:
    """Makes the virtual environment for a device, or completes one that was interrupted; a finished one is left alone.

    It counts as finished once its packages import and a stamp is written, which is the last that happens. Where pip is
    told of an index with builds of torch for CPUs alone, 3 GB are enough for a CPU; the other build needs a few more.

    Returns:
        Its Python.

    Raises:
        MissingDependencyError: A package cannot be installed, or does not work once it is; or the folder holds
            something that envgym did not make, which stays as it is.
    """
    folder = venv_folder(device)
    _check_is_own(folder, device)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # one process at a time
        if _problem(folder, device) is None:
            return _python_of(folder)
        python = _python_of(folder)
        folder.mkdir(exist_ok=True)
        _write_stamp(folder, device, finished=False)
        if not _works(python):
            for entry in folder.iterdir():  # but for its stamp: it is envgym's own also if this is interrupted
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif entry.name != STAMP:
                    entry.unlink()
            venv.create(folder, with_pip=True, symlinks=os.name != "nt")
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *REQUIREMENTS[device]], "pip failed")
        # The whole of what a server imports; an incomplete environment shows here and not when a run starts.
        program = "import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler"
        _run([str(python), "-c", program], "SGLang was installed but does not import", server_environment(device))
        _write_stamp(folder, device, finished=True)
        if problem := _problem(folder, device):
            raise MissingDependencyError(f"The installation ran through, and yet: {problem}")
    return python


def server_environment(device: Device, threads: int | None = 1) -> dict[str, str]:
    """Environment variables of a server: this process's, without what is meant for this process alone.

    Args:
        device: What it runs on.
        threads: Threads of its linear algebra on a CPU; None leaves it to torch.
    """
    own = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    # What torchrun tells its ranks: SGLang's own process group would take itself for a part of the learner's.
    own |= {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"}
    own |= {"ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"}
    environment = {
        name: value for name, value in os.environ.items() if name not in own and not name.startswith("TORCHELASTIC_")
    }
    # The model is a folder: nothing is looked up on a hub. A paused server is healthy: it waits for weights.
    environment |= {"HF_HUB_OFFLINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0", "PYTHONUNBUFFERED": "1"}
    # Where a proxy is set, SGLang's requests to itself must not take it.
    local = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost")))
    environment |= {"no_proxy": local, "NO_PROXY": local}
    # Told to end, it ends, rather than finish the requests of a client that is gone.
    environment["SGL_FORCE_SHUTDOWN"] = "1"
    # When one of its processes has died, it ends at once, to be started again. Its own way is to wait for more than a
    # minute, for dumps of what the GPU was doing.
    environment = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", **environment}
    if device == "cpu":
        environment |= {"PYTHONPATH": str(STAND_IN), "SGLANG_USE_CPU_ENGINE": "1"}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def _problem(folder: Path, device: Device) -> str | None:
    """What keeps a folder from being used, in words; None if nothing does."""
    if not _python_of(folder).exists():
        return f"SGLang {SGLANG_VERSION} for {device} is not installed ('{folder}' has no Python)"
    stamp = {"unfinished": True}
    with contextlib.suppress(OSError, ValueError):
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    if stamp.get("unfinished"):
        return f"The installation of SGLang in '{folder}' was not finished"
    if stamp.get("device") != device:
        return f"The SGLang in '{folder}' was installed for {stamp.get('device')}, not for {device}"
    # What is there now, whatever was put there first.
    names = [path.name for path in folder.glob("lib/python*/site-packages/sglang-*.dist-info")]
    found = names[0].removeprefix("sglang-").removesuffix(".dist-info") if len(names) == 1 else None
    if stamp.get("sglang") != SGLANG_VERSION or found != SGLANG_VERSION:
        return f"'{folder}' holds SGLang {found or stamp.get('sglang')}, but envgym is made for {SGLANG_VERSION}"
    if stamp.get("requirements") != _fingerprint(device):
        return f"'{folder}' was made from another list of packages than this envgym's"
    return None


def _write_stamp(folder: Path, device: Device, *, finished: bool) -> None:
    content: dict[str, object] = {
        "sglang": SGLANG_VERSION,
        "device": device,
        "python": ".".join(map(str, sys.version_info[:3])),
        "requirements": _fingerprint(device),
    }
    if not finished:
        content["unfinished"] = True
    unfinished = folder / f"{STAMP}.new"
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / STAMP)


def _fingerprint(device: Device) -> str:
    """Changes with the packages that are asked for."""
    lines: list[str] = []
    for word in REQUIREMENTS[device]:
        lines += Path(word).read_text(encoding="utf-8").splitlines() if word.endswith(".txt") else [word]
    return hashlib.sha256("\n".join(line for line in lines if not line.startswith("#")).encode()).hexdigest()[:16]


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def _works(python: Path) -> bool:
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _check_is_own(folder: Path, device: Device) -> None:
    """Refuses a folder with something in it that envgym did not put there: nothing is installed into it or deleted.

    Raises:
        MissingDependencyError: It is somebody else's.
    """
    if not folder.exists() or (folder / STAMP).is_file():
        return
    if folder.is_dir() and all(entry.name.startswith(STAMP) for entry in folder.iterdir()):
        return  # empty, but perhaps for a stamp that was being written
    what = "a virtual environment" if (folder / "pyvenv.cfg").is_file() else "something"
    advice = f"unset {VENV_VARIABLE}, or have it name a folder that is empty or does not exist,"
    if not os.environ.get(VENV_VARIABLE):
        advice = f"remove it, or name another folder in {VENV_VARIABLE},"
    raise MissingDependencyError(
        f"'{folder}' holds no SGLang {SGLANG_VERSION} that envgym installed: it is {what} that envgym did not make; "
        f"{advice} and run `envgym serve --install --device {device}`"
    )


def _run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """Runs a program whose output goes to standard error, and names the command if it fails."""
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if result.returncode:
        raise MissingDependencyError(
            f"{failure} (exit status {result.returncode}; its message is above). The command was: {' '.join(command)}"
        )
