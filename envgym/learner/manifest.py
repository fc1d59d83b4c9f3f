"""Checksums of a checkpoint's files: written last, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

from envgym.learner.main_rank import on_main
from envgym.learner.sharding import is_main

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Writes size and SHA-256 of every file in a folder; a collective of all ranks, each of which reads its own shards.

    Raises:
        OSError: A file cannot be read or the manifest not written; on every rank.
    """
    [names] = _broadcast([sorted(path.name for path in folder.iterdir() if path.is_file())] if is_main() else [None])
    entries: dict[str, Any] = {}
    failure: OSError | None = None
    try:
        entries = {name: _entry(folder / name) for name in _share(names)}
    except OSError as error:
        failure = error
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (entries, failure))
    for _, failed in gathered:
        if failed is not None:
            raise failed
    files = {name: entry for part, _ in gathered for name, entry in part.items()}
    on_main(lambda: write_durably(folder / MANIFEST, json.dumps({"files": files}, indent=1)))


def damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint, in a few words, or None; a collective of all ranks."""
    files, problem = _broadcast(list(_read(folder)) if is_main() else [None, None])
    if problem is not None:
        return problem
    mine = next(filter(None, (_difference(folder / name, files[name]) for name in _share(sorted(files)))), None)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return next(filter(None, gathered), None)


def write_durably(path: Path, text: str) -> None:
    """Writes a file and waits until it is on the disk: what is renamed into place later must not turn out empty."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The files of the manifest, or what is wrong with it."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        wrong = [name for name, entry in files.items() if not {"bytes", "sha256"} <= entry.keys()]
    except FileNotFoundError:
        return None, f"it has no {MANIFEST}, so it was not written to its end"
    except OSError as error:
        return None, f"{MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, f"{MANIFEST} is damaged"
    return (None, f"{MANIFEST} is damaged") if wrong or not files else (files, None)


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def _difference(path: Path, expected: dict[str, Any]) -> str | None:
    try:
        found = path.stat().st_size
        if found != expected["bytes"]:
            return f"{path.name} has {found} bytes and had {expected['bytes']} when it was saved"
        if _entry(path) != expected:
            return f"{path.name} does not match its checksum: it was changed after it was saved"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return None


def _share(names: list[str]) -> list[str]:
    """The names this rank reads: shards by the number of the rank that wrote them, everything else on the main rank."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    writers = {name: re.match(r"__(\d+)_", name) for name in names}
    return [name for name, writer in writers.items() if (int(writer[1]) if writer else 0) % num_ranks == rank]


def _broadcast(values: list[Any]) -> list[Any]:
    dist.broadcast_object_list(values, src=0)
    return values
