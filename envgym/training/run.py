"""`train(config)`: a training run from a configuration."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from envgym.config import EstimatorConfig, LossConfig, NewModel, TrainConfig
from envgym.errors import CheckpointError, ModelError, StorageError
from envgym.learner.checkpoint import export_model, load_newest
from envgym.learner.distributed import is_main, pick_device, process_group
from envgym.learner.estimator import Estimator
from envgym.learner.learner import Learner, weights_dtype
from envgym.learner.losses import Loss
from envgym.model_folder import load_model, load_tokenizer, read_model_config
from envgym.training.callbacks import Callback, check_extensions
from envgym.training.loggers import Logger
from envgym.training.run_folder import CHECKPOINTS, INITIAL_MODEL, MODEL, continuation, has_checkpoint, read_config
from envgym.training.trainer import Trainer, TrainResult

__all__ = ["TrainResult", "export_run", "train"]

SMALLEST_RATE_FOR_A_NEW_MODEL = 1e-5
_SET_BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR",)
"""Environment variables that torch sets for itself when its compiler is first imported."""
_log = logging.getLogger("envgym.training")


def train(
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    loss: Loss | None = None,
    estimator: Estimator | None = None,
    resume: bool = False,
    progress: bool = True,
) -> TrainResult:
    """Trains a policy in an environment: warm start, then collection and PPO updates in turn.

    Under `torchrun` every rank calls this with the same configuration; the first one writes the files. Random states,
    warning filters, threads and environment variables of the process are afterwards as they were before.

    Args:
        config: The run.
        callbacks: Called on every rank at the stations of the run, in this order; they may end it.
        loggers: Given every iteration's metrics on the main rank, after `metrics.jsonl` and TensorBoard.
        loss: What the policy minimises, in place of what `config.loss` names; its common settings still hold. The
            stored configuration then names the object, and only a script that hands it over can resume the run.
        estimator: Where advantages come from, in place of what `config.estimator` names; likewise.
        resume: Continue the run in `config.run_dir` from its newest checkpoint. The metrics that follow are those that
            the uninterrupted run would have had. `config` may differ in what does not change what is learned
            (`envgym.training.run_folder.CHANGEABLE`), for example in the addresses of servers.
        progress: Show progress on standard error.

    Returns:
        The same on every rank.

    Raises:
        ValueError: `config` is no `TrainConfig`, or something in it does not fit: unknown environment, run folder in
            use, fewer episodes than ranks, a first prompt longer than the context.
        ModelError: The model folder is missing or incomplete.
        CheckpointError: There is nothing to resume, or it does not belong to this configuration.
        CollectionError: Episodes keep failing.
        StorageError: A file of the run cannot be written, for example because the disk is full.
        Exception: What a callback, a logger or the learner raised. Any error that ends a run which has a checkpoint
            carries a note that says how the run goes on; so does a `KeyboardInterrupt`.
    """
    if not isinstance(config, TrainConfig):
        raise ValueError(
            f"train takes an envgym.TrainConfig, not {config!r:.60}; call a function of envgym.training.recipes, make "
            "one with TrainConfig(**fields), or read a file: TrainConfig.model_validate_json(path.read_text())"
        )
    check_extensions(callbacks, loggers)
    config = _with_names(config, loss=loss, estimator=estimator)
    given = {"callbacks": callbacks, "loggers": loggers, "loss": loss, "estimator": estimator, "resume": resume}
    with process_state_kept(config.torch_threads):
        try:
            return _train(config, progress=progress, **given)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(continuation(config.run_dir))
            raise


def _train(config: TrainConfig, *, progress: bool, **given: Any) -> TrainResult:
    from envgym.training.progress import ProgressDisplay  # rich moves the random state when it is imported

    device = pick_device(config.device)
    with process_group(device) as mesh, ProgressDisplay(enabled=progress and is_main()) as display:
        for advice in _advice(config) if is_main() else ():
            _log.warning(advice)
        trainer = Trainer(config, mesh=mesh, device=device, display=display, **given)
        try:
            return trainer.run()
        except (CheckpointError, StorageError):  # their messages say what to do
            raise
        except Exception as error:
            if has_checkpoint(config.run_dir):
                error.add_note(continuation(config.run_dir))
            raise
        finally:
            trainer.close()


def _with_names(config: TrainConfig, *, loss: Loss | None, estimator: Estimator | None) -> TrainConfig:
    """The configuration with the objects that a script handed over named in it."""
    sections: dict[str, Any] = {}
    for section, given in (("loss", loss), ("estimator", estimator)):
        configured = getattr(config, section)
        if given is not None:
            common = LossConfig.model_fields if section == "loss" else EstimatorConfig.model_fields
            sections[section] = {"kind": "custom", "name": _name(given), **configured.model_dump(include=set(common))}
        elif configured.kind == "custom":
            raise ValueError(
                f"this run trains with the {section} '{configured.name}', an object that its script hands to "
                f"train(..., {section}=...); run that script, with resume=True to go on"
            )
    if estimator is not None:
        sections["estimator"]["needs_critic"] = estimator.needs_critic
    return TrainConfig(**{**config.model_dump(), **sections}) if sections else config


def _name(given: Any) -> str:
    """Where the class or function of an object is: module:name, or script.py:name."""
    named = given if hasattr(given, "__qualname__") else type(given)
    module = named.__module__
    script = getattr(sys.modules["__main__"], "__file__", None)
    return f"{Path(script).name if module == '__main__' and script else module}:{named.__qualname__}"


def _advice(config: TrainConfig) -> list[str]:
    """What in a configuration is legal and yet hardly meant."""
    advice = []
    model, rate = config.model, config.actor.learning_rate
    if isinstance(model, NewModel) and config.num_iterations and 0 < rate < SMALLEST_RATE_FOR_A_NEW_MODEL:
        advice.append(
            f"actor.learning_rate is {rate:g}, which suits large pretrained models; a new random model hardly learns "
            "with it. The recipes use about 7e-4, and 2e-3 for critic.optimizer.learning_rate"
        )
    context, longest = _context_length(config), config.rollout.max_turn_tokens
    if context is not None and longest > context:
        advice.append(
            f"rollout.max_turn_tokens ({longest}) is more than the whole context of the model ({context}): no turn is "
            "ever cut at it, and no overlong_penalty paid; a turn ends where the context does"
        )
    return advice


def _context_length(config: TrainConfig) -> int | None:
    """Most tokens of an episode, where the configuration or the model folder says so."""
    if isinstance(config.model, NewModel):
        return config.model.context_length
    try:
        length = read_model_config(config.model.path).get("max_position_embeddings")
    except ModelError:  # reported when the model is loaded
        return None
    return length if isinstance(length, int) else None


def export_run(run_dir: Path) -> Path:
    """Writes the policy of a run's newest checkpoint as its model folder, for a run that was not finished.

    Args:
        run_dir: The run.

    Returns:
        The model folder.

    Raises:
        CheckpointError: The folder holds no run, or the run no checkpoint.
    """
    config = read_config(run_dir)
    device = pick_device(config.device)
    initial = config.run_dir / INITIAL_MODEL if isinstance(config.model, NewModel) else config.model.path
    with process_state_kept(), process_group(device) as mesh:
        learner = Learner(load_model(initial, weights_dtype(config)), config, mesh=mesh, device=device)
        load_newest(config.run_dir / CHECKPOINTS, learner)
        return export_model(config.run_dir / MODEL, learner, load_tokenizer(initial))


@contextmanager
def process_state_kept(num_threads: int | None = None) -> Iterator[None]:
    """Puts back the process's random states, warning filters, torch threads, exception hook and what torch adds to the
    environment variables.

    Libraries change these when they are first imported (rich draws a random number, torch's compiler names its cache),
    and torch's process groups replace `sys.excepthook` for good. Of several ranks each keeps that hook: it says which
    rank an error is of.

    Args:
        num_threads: Threads of torch meanwhile; None leaves them.
    """
    threads, hook, ours = torch.get_num_threads(), sys.excepthook, not dist.is_initialized()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    absent = [name for name in _SET_BY_TORCH if name not in os.environ]
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    torch.set_num_threads(num_threads or threads)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for name in absent:
            os.environ.pop(name, None)
        if ours and alone:
            sys.excepthook = hook
