"""Saves and restores a learner with torch's distributed checkpoints, on any number of ranks."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from envgym.errors import CheckpointError, StorageError
from envgym.learner.learner import Learner
from envgym.learner.main_rank import on_main
from envgym.learner.manifest import damage, write_durably, write_manifest
from envgym.learner.replacement import replace_folder
from envgym.learner.sharding import is_main

_STATE = "state.json"
_SCALARS = ("iteration", "actor_updates", "critic_updates", "kl")
_log = logging.getLogger(__name__)


def save_checkpoint(folder: Path, learner: Learner, state: dict[str, Any], *, iteration: int, keep: int) -> Path:
    """Writes a checkpoint whole or not at all; a collective of all ranks.

    Its manifest has a checksum of every file and is written last; the folder gets its name when all is on the disk.

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
    partial = folder / f".{final.name}.partial"
    tensors = _tensors(learner)
    scalars = {
        "iteration": iteration,
        "actor_updates": learner.actor_optimizer.num_updates,
        "critic_updates": learner.critic_optimizer.num_updates,
        "kl": None if learner.kl is None else learner.kl.state_dict(),
    }
    text = json.dumps({**state, "learner": scalars})
    try:
        on_main(lambda: _clear(partial))
        dcp.save(tensors, checkpoint_id=str(partial))
        on_main(lambda: write_durably(partial / _STATE, text))
        write_manifest(partial)
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


def _clear(partial: Path) -> None:
    partial.parent.mkdir(parents=True, exist_ok=True)
    if partial.exists():
        shutil.rmtree(partial)


def _put(partial: Path, final: Path, keep: int) -> None:
    """Gives a written checkpoint its name and removes what it makes superfluous."""
    replace_folder(partial, final)
    for old in _complete(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def _num_bytes(tensors: Any) -> int:
    """Size of what is saved, the shards of all ranks together."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    if isinstance(tensors, dict):
        return sum(map(_num_bytes, tensors.values()))
    return sum(map(_num_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


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
    shared: list[Any] = [_complete(folder) if is_main() else None]
    dist.broadcast_object_list(shared, src=0)
    damaged: dict[Path, str] = {}
    for path in reversed(shared[0]):
        wrong = damage(path)
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
    if is_main():
        for other, wrong in damaged.items():
            aside = other.with_name(f"{other.name}.damaged")
            if set_aside:
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(other, aside)
            kept = f" and was renamed '{aside.name}'" if set_aside else ""
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
    wrong = damage(path)
    if wrong is not None:
        raise _unloadable(path, wrong)
    return _load(path, learner, needs)


def _load(path: Path, learner: Learner, needs: Sequence[str]) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        scalars = state.get("learner", {})
        lacking = [key for key in needs if key not in state]
        lacking += [f"learner.{key}" for key in _SCALARS if key not in scalars]
        if lacking:
            raise CheckpointError(f"{_STATE} lacks {', '.join(lacking)}")
        if learner.kl is not None and scalars["kl"] is None:
            raise CheckpointError("it was saved by a run without an adaptive KL penalty")
        tensors = _tensors(learner)
        dcp.load(tensors, checkpoint_id=str(path))
    except (Exception, CheckpointException) as error:
        cause = str(error) if isinstance(error, CheckpointError) else _cause(error)
        raise _unloadable(path, cause) from _root(error)
    for name, module in _modules(learner).items():
        set_model_state_dict(module, tensors[name])
    for name, (module, adam) in _optimizers(learner).items():
        set_optimizer_state_dict(module, adam, tensors[name])
    learner.actor_optimizer.num_updates = scalars["actor_updates"]
    learner.critic_optimizer.num_updates = scalars["critic_updates"]
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


def _modules(learner: Learner) -> dict[str, Any]:
    modules = {"actor": learner.actor, "critic": learner.critic}
    return modules if learner.reference is None else {**modules, "reference": learner.reference}


def _optimizers(learner: Learner) -> dict[str, Any]:
    return {
        "actor_optimizer": (learner.actor, learner.actor_optimizer.adam),
        "critic_optimizer": (learner.critic, learner.critic_optimizer.adam),
    }


def _tensors(learner: Learner) -> dict[str, Any]:
    state = {name: get_model_state_dict(module) for name, module in _modules(learner).items()}
    return state | {name: get_optimizer_state_dict(*pair) for name, pair in _optimizers(learner).items()}
