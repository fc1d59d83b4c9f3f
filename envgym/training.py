"""`train(config)`: a training run from a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from envgym.config import NewModel, TrainConfig
from envgym.learner.checkpoint import latest_checkpoint, load_checkpoint
from envgym.learner.export import export_model
from envgym.learner.learner import Learner, weights_dtype
from envgym.learner.sharding import is_main, pick_device, process_group
from envgym.model_folder import load_model, load_tokenizer
from envgym.progress import ProgressDisplay
from envgym.run_folder import CHECKPOINTS, INITIAL_MODEL, MODEL, read_config
from envgym.trainer import Trainer, TrainResult

__all__ = ["TrainResult", "export_run", "train"]


def train(config: TrainConfig, *, resume: bool = False, progress: bool = True) -> TrainResult:
    """Trains a policy in an environment: warm start, then collection and PPO updates in turn.

    Under `torchrun` every rank calls this with the same configuration; the first one writes the files.

    Args:
        config: The run.
        resume: Continue the run in `config.run_dir` from its newest checkpoint. The metrics that follow are those that
            the uninterrupted run would have had.
        progress: Show progress on standard error.

    Returns:
        The same on every rank.

    Raises:
        ValueError: Something in the configuration does not fit: unknown environment, run folder in use, fewer episodes
            than ranks, a first prompt longer than the context.
        ModelError: The model folder is missing or incomplete.
        CheckpointError: There is nothing to resume, or it does not belong to this configuration.
        CollectionError: Episodes keep failing.
    """
    with _threads(config.torch_threads):
        device = pick_device(config.device)
        with process_group(device) as mesh, ProgressDisplay(enabled=progress and is_main()) as display:
            trainer = Trainer(config, mesh=mesh, device=device, display=display, resume=resume)
            try:
                return trainer.run()
            finally:
                trainer.close()


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
    checkpoint = latest_checkpoint(config.run_dir / CHECKPOINTS)
    initial = config.run_dir / INITIAL_MODEL if isinstance(config.model, NewModel) else config.model.path
    with process_group(device) as mesh:
        learner = Learner(load_model(initial, weights_dtype(config)), config, mesh=mesh, device=device)
        load_checkpoint(checkpoint, learner)
        return export_model(config.run_dir / MODEL, learner, load_tokenizer(initial))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
