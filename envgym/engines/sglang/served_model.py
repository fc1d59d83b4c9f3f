"""The model of a server: what the server says about it, whether it is the expected one, whether a folder has one."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.errors import MissingDependencyError, ModelError
from envgym.model_folder import TOKENIZERS, read_model_config

INDEX = "model.safetensors.index.json"
"""Names the file of each tensor where there are several."""
_LFS_POINTER = b"version https://git-lfs"

_FIELDS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "activation_function"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "layer_types", "sliding_window"),
    *("use_sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
    *("scale_embedding", "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"),
)
"""Entries of `config.json` that change what a forward pass gives."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says about the model it serves.

    Attributes:
        context_length: Most tokens of a prompt and its continuation that it always accepts; a little less than the
            model's, since the server keeps a few to itself.
        vocab_size: Size of the model's vocabulary; None where its folder cannot be read from here.
        tokens: The text of each token id, where the tokenizer can be read from here.
        max_support: Most tokens of which it reports the sampling support.
        weights: Its name for the weights it holds; see `parse_version`.
        folder: Its model folder, which may be on another machine.
    """

    context_length: int
    vocab_size: int | None
    tokens: Mapping[str, int] | None
    max_support: int
    weights: str | None
    folder: str

    @classmethod
    def from_answers(cls, model_info: Mapping[str, Any], server_info: Mapping[str, Any]) -> ServedModel:
        """From `/model_info` and `/server_info`."""
        return cls(
            context_length=int(server_info["max_req_input_len"]),
            vocab_size=vocab_size_of(model_info["model_path"]),
            tokens=tokens_of(model_info.get("tokenizer_path") or model_info["model_path"]),
            max_support=int(server_info["sampling_mask_max_tokens"]),
            weights=model_info.get("weight_version"),
            folder=str(model_info["model_path"]),
        )

    def check(self, url: str, vocab_size: int, tokens: Mapping[str, int] | None, folder: str | Path | None) -> None:
        """Compares the model with another one; what is unknown on either side is not compared.

        Args:
            url: The server's address, for messages.
            vocab_size: Size of the other's vocabulary.
            tokens: The other's tokens, where they are known.
            folder: The other's folder, where there is one.

        Raises:
            ModelError: The two differ.
        """
        advice = "start it with the model that is trained"
        if self.vocab_size not in (None, vocab_size):
            raise ModelError(
                f"{url} serves a model with a vocabulary of {self.vocab_size} tokens, expected {vocab_size}; {advice}"
            )
        if self.tokens is not None and tokens is not None and self.tokens != tokens:
            theirs = self.tokens
            text = next(text for text in (*tokens, *theirs) if theirs.get(text) != tokens.get(text))
            raise ModelError(
                f"{url} serves a model with another vocabulary: {text!r} is token {theirs.get(text)} there, expected "
                f"{tokens.get(text)}; {advice}"
            )
        if folder is not None and Path(self.folder).absolute() != Path(folder).absolute():
            check_architecture(url, self.folder, folder)


def agreed_vocabulary(
    models: Mapping[str, ServedModel], *, vocab_size: int | None, folder: str | Path | None
) -> tuple[int, Mapping[str, int] | None]:
    """Size of the servers' vocabulary and, where it can be read, the tokens in it.

    Args:
        models: What the server at each address serves.
        vocab_size: The size they must have, if it is known.
        folder: The model folder whose vocabulary they must have, if there is one.

    Raises:
        ModelError: Nobody says the size.
    """
    tokens = [model.tokens for model in models.values()]
    sizes = [vocab_size, *(model.vocab_size for model in models.values())]
    if folder is not None:
        tokens, sizes = [tokens_of(folder)], [vocab_size, vocab_size_of(folder)]
        if sizes[1] is None:
            raise ModelError(f"the vocabulary of '{folder}' cannot be read; pass a folder with a config.json")
    size = next((size for size in sizes if size is not None), None)
    if size is None:
        raise ModelError(
            f"the vocabulary of {next(iter(models))} is unknown here, since its model folder cannot be read; "
            "pass vocab_size or model_folder"
        )
    return size, next((known for known in tokens if known is not None), None)


def check_architecture(url: str, served: str | Path, expected: str | Path) -> None:
    """Compares what the models of two folders compute besides their weights; what cannot be read is not compared.

    Raises:
        ModelError: They differ: with the same weights the two would give other probabilities.
    """
    theirs, ours = architecture_of(served), architecture_of(expected)
    if theirs is None or ours is None or theirs == ours:
        return
    name = next(name for name in _FIELDS if theirs.get(name) != ours.get(name))
    raise ModelError(
        f"{url} serves a model whose {name} is {theirs.get(name)}, expected {ours.get(name)}; start it with the "
        "model that is trained"
    )


def architecture_of(folder: str | Path) -> dict[str, Any] | None:
    """The settings of a folder's model, defaults filled in; None where they cannot be read here."""
    if not (Path(folder) / "config.json").is_file():
        return None
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().to_dict()
    except Exception:  # a model that this version of transformers does not know
        _log.debug("the configuration in %s is not known", folder, exc_info=True)
        return None
    return {name: config[name] for name in _FIELDS if name in config}


def vocab_size_of(folder: str | Path) -> int | None:
    """`vocab_size` of a model folder; None if it cannot be read here."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def tokens_of(folder: str | Path) -> dict[str, int] | None:
    """The text of each token, special ones included, by a folder's `tokenizer.json`; None if it cannot be read here."""
    try:
        tokenizer = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
        tokens = dict(tokenizer["model"]["vocab"])
        tokens.update((token["content"], token["id"]) for token in tokenizer["added_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tokens


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
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingDependencyError(
            "weights are checked with safetensors, which is not installed; pip install 'envgym[sglang]'"
        ) from error
    for file in sorted(path / name for name in files | _expected_files(path, files)):
        _check_content(file)
        try:
            with safe_open(file, framework="numpy"):
                pass
        except SafetensorError as error:
            raise ModelError(f"'{file}' is cut off or no safetensors file ({error}); {_again(file)}") from error
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
