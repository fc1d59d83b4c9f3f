"""Checkpoints: a learner saved and restored with torch's distributed checkpoints, on any number of ranks.

A checkpoint's manifest holds a checksum of every file; it is written last and checked before anything is loaded. The
folder gets its name when all is on the disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._pytree import tree_leaves

from envgym.errors import CheckpointError, StorageError, put_in_place, remove, written_whole
from envgym.learner.distributed import from_main, is_main, of_all_ranks, on_main
from envgym.learner.learner import Learner
from envgym.model_folder import quiet
from envgym.weights import weight_buckets

_MANIFEST, _STATE = "manifest.json", "state.json"
_log = logging.getLogger(__name__)


def save_checkpoint(folder: Path, learner: Learner, state: dict[str, Any], *, iteration: int, keep: int) -> Path:
    """Writes a checkpoint whole or not at all; a collective of all ranks.

    Args:
        folder: Where the checkpoints of the run are.
        learner: Actor, critic, reference and optimizers are saved.
        state: What else must survive; JSON-serialisable. Only the main rank's is written.
        iteration: Iterations that lie behind.
        keep: How many checkpoints to keep, this one included.

    Returns:
        The checkpoint's folder.

    Raises:
        StorageError: It could not be written, for example because the disk is full; raised on every rank. The
            checkpoints that were there before are untouched.
    """
    final = folder / f"{iteration:06d}"
    partial = folder / f".{final.name}.partial"  # of all ranks, so not `written_whole`
    tensors = _tensors(learner)
    scalars = {
        "iteration": iteration,
        **{f"{name}_updates": optimizer.num_updates for name, optimizer in learner.optimizers.items()},
        "kl": None if learner.kl is None else learner.kl.state_dict(),
    }
    text = json.dumps({**state, "learner": scalars})
    try:
        on_main(lambda: folder.mkdir(parents=True, exist_ok=True))
        on_main(lambda: remove(partial))
        dcp.save(tensors, checkpoint_id=str(partial))
        on_main(lambda: (partial / _STATE).write_text(text, encoding="utf-8"))
        _write_manifest(partial)
        on_main(lambda: _put(partial, final, keep))
    except (OSError, CheckpointException) as error:  # torch derives the latter from BaseException
        on_main(lambda: shutil.rmtree(partial, ignore_errors=True))
        before = _complete(folder)
        advice = (
            f"The checkpoint '{before[-1]}' before it is untouched: make room and resume the run"
            if before
            else "There is no checkpoint before it: make room and start the run again"
        )
        raise StorageError.at(final, _cause(error), advice, num_bytes=_num_bytes(tensors)) from _root(error)
    return final


def _put(partial: Path, final: Path, keep: int) -> None:
    """Gives a written checkpoint its name and removes what it makes superfluous."""
    put_in_place(partial, final)
    for old in _complete(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def _num_bytes(tensors: Any) -> int:
    """Size of all tensors in a tree, the shards of all ranks together."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint that was written to its end; whether it still is as it was written is not checked.

    Raises:
        CheckpointError: There is none.
    """
    complete = _complete(folder)
    if not complete:
        raise CheckpointError(f"'{folder}' holds no checkpoint to resume from; start the run anew in another folder")
    return complete[-1]


def load_newest(
    folder: Path, learner: Learner, *, needs: Sequence[str] = (), set_aside: bool = False
) -> dict[str, Any]:
    """Restores a learner from the newest intact checkpoint of a run; a collective of all ranks.

    A damaged one is passed over with a warning in the log that names it, says what is wrong and what is loaded in its
    place.

    Args:
        folder: Where the checkpoints of the run are.
        learner: Restored in place.
        needs: What must be in the saved `state`.
        set_aside: Rename the damaged ones that were passed over, for a run that goes on from the one before and will
            write these iterations anew.

    Returns:
        As of `load_checkpoint`.

    Raises:
        CheckpointError: There is no checkpoint, none is intact, or it belongs to another configuration.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(from_main(_complete(folder) if is_main() else [])):
        wrong = _damage(path)
        if wrong is None:
            break
        damaged[path] = wrong
    else:
        if not damaged:
            latest_checkpoint(folder)
        listed = "; ".join(f"{path.name}: {wrong}" for path, wrong in damaged.items())
        raise CheckpointError(
            f"no checkpoint in '{folder}' is intact ({listed}); put a copy of one back, or start the run anew in "
            "another folder"
        )
    state = _load(path, learner, needs)
    for other, wrong in damaged.items() if is_main() else ():
        kept = ""
        if set_aside:
            aside = other.with_name(f"{other.name}.damaged")
            remove(aside)
            os.replace(other, aside)
            kept = f" and was renamed '{aside.name}'"
        _log.warning(
            "the checkpoint '%s' is damaged (%s)%s; the older '%s' is used in its place", other, wrong, kept, path
        )
    return state


def load_checkpoint(path: Path, learner: Learner, *, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Restores a learner in place; a collective of all ranks, whose number may differ from when it was saved.

    Args:
        path: The checkpoint.
        learner: Restored in place.
        needs: What must be in the saved `state`.

    Returns:
        The `state` that was saved with it, and `state["learner"]["iteration"]`.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another configuration.
    """
    wrong = _damage(path)
    if wrong is not None:
        raise _unloadable(path, wrong)
    return _load(path, learner, needs)


def _load(path: Path, learner: Learner, needs: Sequence[str]) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        scalars = state.get("learner", {})
        wanted = ("iteration", "kl", *(f"{name}_updates" for name in learner.optimizers))
        lacking = [key for key in needs if key not in state]
        lacking += [f"learner.{key}" for key in wanted if key not in scalars]
        if lacking:
            raise CheckpointError(f"{_STATE} lacks {', '.join(lacking)}")
        if learner.kl is not None and scalars["kl"] is None:
            raise CheckpointError("it was saved by a run without an adaptive KL penalty")
        tensors = _tensors(learner)
        dcp.load(tensors, checkpoint_id=str(path))
    except (Exception, CheckpointException) as error:
        cause = str(error) if isinstance(error, CheckpointError) else _cause(error)
        raise _unloadable(path, cause) from _root(error)
    for name, module in learner.modules.items():
        set_model_state_dict(module, tensors[name])
    for name, optimizer in learner.optimizers.items():
        set_optimizer_state_dict(optimizer.module, optimizer.adam, tensors[f"{name}_optimizer"])
        optimizer.num_updates = scalars[f"{name}_updates"]
    if learner.kl is not None:
        learner.kl.load_state_dict(scalars["kl"])
    return state


def _unloadable(path: Path, wrong: str) -> CheckpointError:
    others = [other.name for other in _complete(path.parent) if other != path]
    advice = (
        f"load '{others[-1]}' beside it instead" if others else "there is no other: put a copy back or start a new run"
    )
    return CheckpointError(f"the checkpoint '{path}' cannot be loaded ({wrong}); {advice}")


def _root(error: BaseException) -> BaseException:
    """Of the failures on all ranks the first, without torch's account of the ranks around it."""
    return next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error


def _cause(error: BaseException) -> str:
    """The root in one line."""
    root = _root(error)
    return f"{type(root).__name__}: {root}".rstrip(": ").partition("\n")[0]


def _complete(folder: Path) -> list[Path]:
    """Checkpoints that got their name, oldest first; what lies in an empty folder was never one."""
    return sorted(path for path in folder.glob("[0-9]" * 6) if path.is_dir() and any(path.iterdir()))


def _tensors(learner: Learner) -> dict[str, Any]:
    tensors: dict[str, Any] = {name: get_model_state_dict(module) for name, module in learner.modules.items()}
    for name, optimizer in learner.optimizers.items():
        tensors[f"{name}_optimizer"] = get_optimizer_state_dict(optimizer.module, optimizer.adam)
    return tensors


def export_model(folder: Path, learner: Learner, tokenizer: Any) -> Path:
    """Writes config, safetensors and tokenizer, whole or not at all; a collective of all ranks.

    Args:
        folder: Replaced if it exists.
        learner: Its actor is written.
        tokenizer: The Hugging Face tokenizer that belongs to it.

    Returns:
        The folder; transformers, SGLang and `TorchPolicy` load it.

    Raises:
        StorageError: It could not be written; raised on every rank. What was there before is left.
    """
    weights = {}
    for bucket in weight_buckets(learner.actor.lm):
        if is_main():
            weights.update({name: tensor.cpu().clone() for name, tensor in bucket})
    on_main(lambda: _write_model(folder, learner, weights, tokenizer))
    return folder


def _write_model(folder: Path, learner: Learner, weights: dict[str, Tensor], tokenizer: Any) -> None:
    try:
        with written_whole(folder) as partial:
            with quiet():
                learner.actor.lm.save_pretrained(str(partial), state_dict=weights)
            tokenizer.save_pretrained(str(partial))
    except (OSError, SafetensorError) as error:
        advice = "The checkpoints of the run are untouched: make room and resume the run, or export it"
        cause = f"{type(error).__name__}: {error}"
        raise StorageError.at(folder, cause, advice, num_bytes=_num_bytes(weights)) from error


def _write_manifest(folder: Path) -> None:
    """Writes size and SHA-256 of every file; a collective, in which each rank reads its own shards."""
    names = from_main(sorted(path.name for path in folder.iterdir() if path.is_file()) if is_main() else [])
    mine: dict[str, Any] | OSError
    try:
        mine = {name: _entry(folder / name) for name in _share(names)}
    except OSError as error:
        mine = error
    files: dict[str, Any] = {}
    for entries in of_all_ranks(mine):
        if isinstance(entries, OSError):
            raise entries
        files |= entries
    on_main(lambda: (folder / _MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8"))


def _damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint, in a few words, or None; a collective of all ranks."""
    files = from_main(_read_manifest(folder) if is_main() else "")
    if isinstance(files, str):
        return files
    differences = (_difference(folder / name, files[name]) for name in _share(sorted(files)))
    return next(filter(None, of_all_ranks(next(filter(None, differences), None))), None)


def _read_manifest(folder: Path) -> dict[str, Any] | str:
    """The files of the manifest, or what is wrong with it."""
    try:
        files: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        if files and all({"bytes", "sha256"} <= entry.keys() for entry in files.values()):
            return files
    except FileNotFoundError:
        return f"it has no {_MANIFEST}, so it was not written to its end"
    except OSError as error:
        return f"{_MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return f"{_MANIFEST} is damaged"


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
