"""Writes a trained policy as a Hugging Face model folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist

from envgym.learner.learner import Learner
from envgym.learner.sharding import is_main
from envgym.model_folder import quiet
from envgym.weight_sync.buckets import weight_buckets


def export_model(folder: Path, learner: Learner, tokenizer: Any) -> Path:
    """Writes config, safetensors and tokenizer, whole or not at all; a collective of all ranks.

    Args:
        folder: Replaced if it exists.
        learner: Its actor is written.
        tokenizer: The Hugging Face tokenizer that belongs to it.

    Returns:
        The folder; transformers, SGLang and `TorchPolicy` load it.
    """
    weights = {}
    for bucket in weight_buckets(learner.actor.lm):
        if is_main():
            weights.update({name: tensor.cpu().clone() for name, tensor in bucket})
    if is_main():
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with quiet():
            learner.actor.lm.save_pretrained(str(partial), state_dict=weights)
        tokenizer.save_pretrained(str(partial))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    dist.barrier()
    return folder
