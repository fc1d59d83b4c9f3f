"""What a model folder must have before a server is started on it, found out in milliseconds rather than in a minute."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from envgym.engines.sglang.facts import tokens_of, vocab_size_of
from envgym.errors import ModelError
from envgym.model_folder import TOKENIZERS, read_model_config

INDEX = "model.safetensors.index.json"
"""Names the file of each tensor where there are several."""
_LFS_POINTER = b"version https://git-lfs"
_MAX_HEADER_BYTES = 100_000_000
"""What the format allows; a longer one means that the file is something else."""


def check_served_model(folder: str | Path, *, tokenizer: bool = True) -> dict[str, Any]:
    """Checks a model folder. Of the weights only the headers are read.

    Args:
        folder: A Hugging Face-format folder.
        tokenizer: Whether it needs a tokenizer.

    Returns:
        Its `config.json`.

    Raises:
        ModelError: The folder is missing, has no configuration, weights or tokenizer, a file of them is cut off or was
            not fetched, or its tokenizer has ids that the model has no embedding for.
    """
    path = Path(folder)
    config = read_model_config(path)
    files = {file.name for file in path.glob("*.safetensors")}
    if not files:
        raise ModelError(
            f"'{path}' has a config.json but no weights (*.safetensors), which is what SGLang serves; copy the weight "
            "files into it, or save the model again with transformers."
        )
    for name in sorted(files | _expected_files(path, files)):
        check_safetensors(path / name)
    if not tokenizer:
        return config
    found = [path / name for name in TOKENIZERS if (path / name).is_file()]
    if not found:
        raise ModelError(
            f"'{path}' has no tokenizer (tokenizer.json); copy the model's tokenizer files into it, or serve token ids "
            "only (tokenizer=False, --no-tokenizer)."
        )
    for file in found:
        _check_content(file)
    tokens, vocab_size = tokens_of(path), vocab_size_of(path)
    if tokens is None and (path / "tokenizer.json").is_file():
        _read_json(path / "tokenizer.json")
    if tokens and vocab_size is not None and max(tokens.values()) >= vocab_size:
        raise ModelError(
            f"Vocabulary mismatch in '{path}': the tokenizer has ids up to {max(tokens.values())} but the model's "
            f"vocab_size is {vocab_size}; use the tokenizer the model was trained with, or resize its embeddings."
        )
    return config


def check_safetensors(file: Path) -> None:
    """Compares the length of a safetensors file with what its header says.

    The format: the header's length as 8 bytes, little-endian; the header, a JSON object that gives each tensor its
    `data_offsets`; the data, which the offsets count from 0 and cover without a gap.

    Raises:
        ModelError: It cannot be read, is empty, a git-lfs pointer, something else, or not as long as it should be.
    """
    _check_content(file)
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ModelError(f"'{file}' is no safetensors file (its header has no valid length); {_again(file)}")
        if 8 + length > size:
            raise ModelError(
                f"'{file}' is cut off: {size} bytes, of which the header alone takes {8 + length}; {_again(file)}"
            )
        header = stream.read(length)
    try:
        tensors = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"'{file}' is no safetensors file (its header cannot be read); {_again(file)}") from error
    if size != expected:
        what = "is cut off" if size < expected else "is too long"
        raise ModelError(f"'{file}' {what}: {size} bytes, where its header says {expected}; {_again(file)}")


def _expected_files(folder: Path, found: set[str]) -> set[str]:
    """Names of the weight files that the index lists or, where there is none, that the numbers in the names tell."""
    if not (folder / INDEX).is_file():
        parts = [match for name in found if (match := re.fullmatch(r"(.+-)\d{5}(-of-(\d{5})\.safetensors)", name))]
        return {f"{part[1]}{number:05d}{part[2]}" for part in parts for number in range(1, int(part[3]) + 1)}
    _check_content(folder / INDEX)
    content = _read_json(folder / INDEX)
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ModelError(f"'{folder / INDEX}' has no weight_map of tensors and files; {_again(folder / INDEX)}")
    return set(files.values())


def _check_content(file: Path) -> None:
    """Refuses what an incomplete download leaves in the place of a file."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS_POINTER))
    except OSError as error:
        raise ModelError(f"'{file}' cannot be read ({error.strerror}); {_again(file)}") from error
    if not start:
        raise ModelError(f"'{file}' is empty; {_again(file)}")
    if start == _LFS_POINTER:
        raise ModelError(
            f"'{file}' is a git-lfs pointer and not the file itself; run `git lfs pull` in the clone that it is from, "
            "or download the model with `hf download`."
        )


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"'{file}' is not valid JSON ({error}); {_again(file)}") from error


def _again(file: Path) -> str:
    return f"download or copy {file.name} again."
