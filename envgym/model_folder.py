"""Loads a causal language model and its tokenizer from a Hugging Face-format folder, or says what is wrong with it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from envgym.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which one holds the tokenizer."""


def read_model_config(folder: str | Path) -> dict[str, Any]:
    """The `config.json` of a model folder.

    Raises:
        ModelError: The folder is missing, or holds no readable `config.json`.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ModelError(
            f"The model folder '{path}' does not exist; create one with "
            "envgym.engines.embedded.tiny_model.create_model, or download one with "
            "`hf download <model id> --local-dir <folder>`."
        )
    if not (path / "config.json").is_file():
        raise ModelError(
            f"'{path}' has no config.json, so it is not a Hugging Face model folder; pass the folder that has one."
        )
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(
            f"'{path / 'config.json'}' is not valid JSON ({error}); copy the model folder again."
        ) from error
    if not isinstance(config, dict):
        raise ModelError(f"'{path / 'config.json'}' does not hold a JSON object; copy the model folder again.")
    return config


def missing_parts(folder: Path) -> list[str]:
    """What a folder lacks of a model folder: "config.json", "weights (*.safetensors)", "tokenizer (tokenizer.json)"."""
    parts = {
        "config.json": ("config.json",),
        "weights (*.safetensors)": _WEIGHTS,
        "tokenizer (tokenizer.json)": TOKENIZERS,
    }
    return [part for part, files in parts.items() if not _has_any(folder, files)]


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def load_model(folder: str | Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The causal language model of a folder, on the CPU and in evaluation mode.

    Args:
        folder: A folder with `config.json` and safetensors (or `pytorch_model.bin`) weights.
        dtype: Type the weights are converted to; float32 when None.

    Raises:
        ModelError: The folder is missing or incomplete, its weights do not fit its configuration, or transformers
            cannot load it.
    """
    read_model_config(folder)
    if not _has_any(Path(folder), _WEIGHTS):
        raise ModelError(
            f"'{folder}' has a config.json but no weights (*.safetensors); copy the weight files into it too."
        )
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype or torch.float32, local_files_only=True, output_loading_info=True
            )
    except Exception as error:
        raise ModelError(f"transformers cannot load the model in '{folder}': {_first_line(error)}") from error
    model, loading = loaded
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError(
            f"The weights in '{folder}' lack {len(missing)} parameters of the configured model (the first is "
            f"'{missing[0]}'); copy the folder again, all weight files included."
        )
    return cast("PreTrainedModel", model.eval())


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder, checked against the model's vocabulary.

    Raises:
        ModelError: The folder or its tokenizer is missing, or the tokenizer has ids that the model has no embedding for
            ("vocabulary mismatch").
    """
    config = read_model_config(folder)
    if not _has_any(Path(folder), TOKENIZERS):
        raise ModelError(f"'{folder}' has no tokenizer (tokenizer.json); copy the model's tokenizer files into it.")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise ModelError(f"transformers cannot load the tokenizer in '{folder}': {_first_line(error)}") from error
    largest, vocab_size = max(tokenizer.get_vocab().values()), config.get("vocab_size")
    if isinstance(vocab_size, int) and largest >= vocab_size:
        raise ModelError(
            f"Vocabulary mismatch in '{folder}': the tokenizer has ids up to {largest} but the model's vocab_size is "
            f"{vocab_size}; use the tokenizer the model was trained with, or resize its embeddings."
        )
    return tokenizer


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' progress bars off the terminal; they say nothing about a model that loads in milliseconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
