"""Saves and restores a learner with torch's distributed checkpoints, on any number of ranks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from envgym.errors import CheckpointError
from envgym.learner.learner import Learner
from envgym.learner.sharding import is_main

_STATE = "state.json"


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
    """
    final = folder / f"{iteration:06d}"
    partial = folder / f".{final.name}.partial"
    if is_main():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
    dist.barrier()
    dcp.save(_tensors(learner), checkpoint_id=str(partial))
    if is_main():
        scalars = {
            "iteration": iteration,
            "actor_updates": learner.actor_optimizer.num_updates,
            "critic_updates": learner.critic_optimizer.num_updates,
            "kl": None if learner.kl is None else learner.kl.state_dict(),
        }
        (partial / _STATE).write_text(json.dumps({**state, "learner": scalars}), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        for old in _complete(folder)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def latest_checkpoint(folder: Path) -> Path:
    """The newest complete checkpoint.

    Raises:
        CheckpointError: There is none.
    """
    complete = _complete(folder)
    if not complete:
        raise CheckpointError(f"'{folder}' holds no checkpoint to resume from; start the run anew in another folder")
    return complete[-1]


def load_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Restores a learner in place; a collective of all ranks, whose number may differ from when it was saved.

    Returns:
        The `state` that was saved with it, and `state["learner"]["iteration"]`.

    Raises:
        CheckpointError: The checkpoint is damaged or belongs to another configuration.
    """
    try:
        state: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        tensors = _tensors(learner)
        dcp.load(tensors, checkpoint_id=str(path))
    except (Exception, CheckpointException) as error:  # torch derives the latter from BaseException
        raise CheckpointError(
            f"the checkpoint '{path}' cannot be loaded ({_cause(error)}); delete it to resume from the one before"
        ) from error
    for name, module in _modules(learner).items():
        set_model_state_dict(module, tensors[name])
    for name, (module, adam) in _optimizers(learner).items():
        set_optimizer_state_dict(module, adam, tensors[name])
    learner.actor_optimizer.num_updates = state["learner"]["actor_updates"]
    learner.critic_optimizer.num_updates = state["learner"]["critic_updates"]
    if learner.kl is not None:
        learner.kl.load_state_dict(state["learner"]["kl"])
    return state


def _cause(error: BaseException) -> str:
    """One line; of the failures on all ranks the first."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {error}".rstrip(": ").partition("\n")[0]


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]" * 6) if (path / _STATE).is_file())


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
