"""What a model folder must have before a server is started on it, found out in milliseconds rather than in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envgym.errors import ModelError
from envgym.policies.sglang_facts import tokens_of, vocab_size_of


def check_served_model(folder: str | Path, *, tokenizer: bool = True) -> dict[str, Any]:
    """Checks a model folder.

    Args:
        folder: A Hugging Face-format folder.
        tokenizer: Whether it needs a tokenizer.

    Returns:
        Its `config.json`.

    Raises:
        ModelError: The folder is missing, has no configuration, weights or tokenizer, or its tokenizer has ids that the
            model has no embedding for.
    """
    from envgym.model_folder import read_config

    path = Path(folder)
    config = read_config(path)
    if next(path.glob("*.safetensors"), None) is None:
        raise ModelError(
            f"'{path}' has a config.json but no weights (*.safetensors), which is what SGLang serves; copy the weight "
            "files into it, or save the model again with transformers."
        )
    if not tokenizer:
        return config
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"'{path}' has no tokenizer (tokenizer.json); copy the model's tokenizer files into it, or serve token ids "
            "only (tokenizer=False, --no-tokenizer)."
        )
    tokens, vocab_size = tokens_of(path), vocab_size_of(path)
    if tokens and vocab_size is not None and max(tokens.values()) >= vocab_size:
        raise ModelError(
            f"Vocabulary mismatch in '{path}': the tokenizer has ids up to {max(tokens.values())} but the model's "
            f"vocab_size is {vocab_size}; use the tokenizer the model was trained with, or resize its embeddings."
        )
    return config
