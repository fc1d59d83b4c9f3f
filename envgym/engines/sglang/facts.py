"""What the servers of one policy must agree on, and with the model that is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgym.engines.sglang.architecture import architecture_of, check_architecture
from envgym.errors import ModelError


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself.

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
    def from_answers(cls, model_info: Mapping[str, Any], server_info: Mapping[str, Any]) -> ServerFacts:
        """From `/model_info` and `/server_info`."""
        return cls(
            context_length=int(server_info["max_req_input_len"]),
            vocab_size=vocab_size_of(model_info["model_path"]),
            tokens=tokens_of(model_info.get("tokenizer_path") or model_info["model_path"]),
            max_support=int(server_info["sampling_mask_max_tokens"]),
            weights=model_info.get("weight_version"),
            folder=str(model_info["model_path"]),
        )


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


def check_vocabulary(url: str, facts: ServerFacts, vocab_size: int | None, tokens: Mapping[str, int] | None) -> None:
    """Checks a server's vocabulary against another; what is unknown on either side is not compared.

    Raises:
        ModelError: They differ.
    """
    if None not in (facts.vocab_size, vocab_size) and facts.vocab_size != vocab_size:
        raise ModelError(
            f"{url} serves a model with a vocabulary of {facts.vocab_size} tokens, expected {vocab_size}; "
            "start it with the model that is trained"
        )
    if facts.tokens is None or tokens is None or facts.tokens == tokens:
        return
    theirs = facts.tokens
    text = next(text for text in (*tokens, *theirs) if theirs.get(text) != tokens.get(text))
    raise ModelError(
        f"{url} serves a model with another vocabulary: {text!r} is token {theirs.get(text)} there, "
        f"expected {tokens.get(text)}; start it with the model that is trained"
    )


def agreed_vocabulary(
    urls: Sequence[str], facts: Sequence[ServerFacts], *, vocab_size: int | None, folder: str | Path | None
) -> tuple[int, Mapping[str, int] | None]:
    """Size of the servers' vocabulary and, where it can be read, the tokens in it.

    Args:
        urls: The servers' addresses.
        facts: What they say.
        vocab_size: The size they must have, if it is known.
        folder: The model folder whose vocabulary they must have, if there is one.

    Raises:
        ModelError: They differ, or nobody says the size.
    """
    tokens: Mapping[str, int] | None = None
    if folder is not None:
        size = vocab_size_of(folder)
        if size is None:
            raise ModelError(f"the vocabulary of '{folder}' cannot be read; pass a folder with a config.json")
        tokens = tokens_of(folder)
        vocab_size = size if vocab_size is None else vocab_size
    sizes = [size for size in (vocab_size, *(fact.vocab_size for fact in facts)) if size is not None]
    if not sizes:
        raise ModelError(
            f"the vocabulary of {urls[0]} is unknown here, since its model folder cannot be read; "
            "pass vocab_size or model_folder"
        )
    for url, fact in zip(urls, facts, strict=True):
        tokens = fact.tokens if tokens is None else tokens
        check_vocabulary(url, fact, sizes[0], tokens)
    return sizes[0], tokens


def check_architectures(urls: Sequence[str], facts: Sequence[ServerFacts], folder: str | Path) -> None:
    """Checks that the servers compute what the model in a folder does, as far as their folders can be read here.

    Raises:
        ModelError: One of them computes something else.
    """
    others = {fact.folder for fact in facts if Path(fact.folder).absolute() != Path(folder).absolute()}
    expected = architecture_of(folder) if others else None
    served = {other: architecture_of(other) for other in others}
    for url, fact in zip(urls, facts, strict=True):
        check_architecture(url, served.get(fact.folder), expected)


def agreed_context(urls: Sequence[str], facts: Sequence[ServerFacts]) -> int:
    """The servers' context length.

    Raises:
        ModelError: They differ.
    """
    if len({fact.context_length for fact in facts}) > 1:
        lengths = ", ".join(f"{url}: {fact.context_length}" for url, fact in zip(urls, facts, strict=True))
        raise ModelError(f"the servers' contexts differ ({lengths}); start them alike")
    return facts[0].context_length
