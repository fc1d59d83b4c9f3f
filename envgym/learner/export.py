"""Writes a trained policy as a Hugging Face model folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from envgym.errors import StorageError
from envgym.learner.learner import Learner
from envgym.learner.main_rank import on_main
from envgym.learner.replacement import replace_folder
from envgym.learner.sharding import is_main
from envgym.model_folder import quiet
from envgym.weights import weight_buckets


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
    on_main(lambda: _write(folder, learner, weights, tokenizer))
    return folder


def _write(folder: Path, learner: Learner, weights: dict[str, Tensor], tokenizer: Any) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        with quiet():
            learner.actor.lm.save_pretrained(str(partial), state_dict=weights)
        tokenizer.save_pretrained(str(partial))
        replace_folder(partial, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        advice = "The checkpoints of the run are untouched: make room and resume the run, or export it"
        raise StorageError.at(folder, f"{type(error).__name__}: {error}", advice, num_bytes=size) from error
