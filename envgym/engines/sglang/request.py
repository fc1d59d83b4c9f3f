"""One generation of an SGLang server: the JSON it is asked with, and what its answer and its weights' name mean."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgym.errors import ServerError
from envgym.types import SamplingParams, VersionSpan, append_span

_BROKEN = "the weights it holds are broken, send them again"
_MAX_LOGPROB = 1e-4
"""How far above 0 rounding may bring a log-probability."""

_OFF: dict[str, Any] = {"n": 1, "min_new_tokens": 0, "repetition_penalty": 1.0, "no_stop_trim": True}
_OFF |= dict.fromkeys(("min_p", "frequency_penalty", "presence_penalty"), 0.0)
_OFF |= dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), False)
_OFF |= dict.fromkeys(("stop", "stop_regex", "logit_bias", "json_schema", "regex", "ebnf", "structural_tag"))
_OFF |= {"custom_params": None}
UNKNOWN_VERSION = -1
"""Of weights that somebody else gave a server, or that it was started with."""


class Aborted(ServerError):
    """The server gave the generation up before its end; the message says why."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request brought; see `Completion` for the fields of the same names.

    Attributes:
        num_prompt_tokens: Tokens of the prompt.
        num_cached_tokens: How many of them the server had computed before.
    """

    token_ids: list[int]
    logprobs: list[float]
    version_spans: list[VersionSpan]
    support: list[tuple[int, ...]] | None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def append(self, piece: Generation) -> None:
        """Adds what a later request of the same turn brought."""
        start = len(self.token_ids)
        self.token_ids.extend(piece.token_ids)
        self.logprobs.extend(piece.logprobs)
        if self.support is not None and piece.support is not None:
            self.support.extend(piece.support)
        for span in piece.version_spans:
            append_span(self.version_spans, VersionSpan(start + span.start, start + span.end, span.version))


def encode_tokens(token_ids: Sequence[int]) -> str:
    """The inside of a JSON list."""
    return ",".join(map(str, token_ids))


def encode_request(prompt: str, request_id: str, sampling: Mapping[str, Any], *, with_support: bool) -> bytes:
    """The body of a `/generate` request.

    Args:
        prompt: The prompt's token ids, as `encode_tokens` writes them.
        request_id: Its name on the server. Aborting matches prefixes: all names need the same length.
        sampling: What `encode_sampling` returned, with `max_new_tokens`.
        with_support: Whether to ask for the tokens that could have been drawn.
    """
    rest = {
        "rid": request_id,
        "sampling_params": sampling,
        "return_logprob": True,
        "top_logprobs_num": 0,
        "return_text_in_logprobs": False,
        "return_sampling_mask": with_support,
        "stream": False,
    }
    # The prompt is by far the longest part and mostly known from the last turn, so it is not encoded again.
    return f'{{"input_ids":[{prompt}],{json.dumps(rest)[1:]}'.encode()


def encode_sampling(sampling: SamplingParams, *, vocab_size: int, max_support: int) -> dict[str, Any]:
    """Every sampling field of the server, so that none takes the server's or the model's default.

    Args:
        sampling: How to draw.
        vocab_size: Size of the vocabulary.
        max_support: Most tokens of which the server reports the support.

    Raises:
        ValueError: The server cannot sample so and say what it sampled from.
    """
    top_k = -1
    if sampling.temperature == 0:
        top_k = 1
    elif sampling.has_support:
        top_k = min(sampling.top_k or vocab_size, vocab_size)
        if sampling.top_k == 0:
            top_k = min(top_k, max_support)
        elif top_k > max_support:
            raise ValueError(
                f"top_k {sampling.top_k} is more than the {max_support} tokens of which the server reports the "
                "support; use a smaller one, or start the server with a larger --sampling-mask-max-tokens"
            )
    return {
        "temperature": sampling.temperature,
        "top_k": top_k,
        "top_p": sampling.top_p if sampling.has_support else 1.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        # This switch turns stop_token_ids off too. Where the server stops at a token that is none of them, the policy
        # asks it to go on.
        "ignore_eos": not sampling.stop_token_ids,
        **_OFF,
    }


def parse_answer(answer: Mapping[str, Any], sampling: SamplingParams, *, url: str, vocab_size: int) -> Generation:
    """What the server generated, checked.

    Args:
        answer: The answer to a request of `encode_request`.
        sampling: How it was asked to draw.
        url: The server's address, for messages.
        vocab_size: Size of the vocabulary.

    Raises:
        Aborted: The generation was given up.
        ServerError: The answer is not what was asked for; the message says in what.
    """

    def check(holds: bool, problem: str) -> None:
        if not holds:
            raise ServerError(f"{url} answered a generation with {problem}")

    try:
        meta, token_ids = answer["meta_info"], answer["output_ids"]
        reason = meta["finish_reason"]
        if reason["type"] == "abort":
            raise Aborted(f"{url} gave the generation up: {reason.get('message') or 'aborted'}")
        check(reason.get("matched") != "NaN happened", f"NaN logits; {_BROKEN}")
        pairs = meta["output_token_logprobs"]
        logprobs = [pair[0] for pair in pairs]
        check([pair[1] for pair in pairs] == token_ids, f"ids that are not those of its log-probabilities; {_BROKEN}")
        check(bool(token_ids), "no token")
        check(min(token_ids) >= 0 and max(token_ids) < vocab_size, f"a token outside the vocabulary [0, {vocab_size})")
        spans = parse_spans(meta["weight_versions"])
        covered = [0, *(span.end for span in spans)]
        check(
            [span.start for span in spans] == covered[:-1] and covered[-1] == len(token_ids),
            f"weight versions that do not cover its {len(token_ids)} tokens: {meta['weight_versions']}",
        )
        support: list[tuple[int, ...]] | None = None
        if sampling.top_k == 1 and sampling.has_support:
            support, logprobs = [(token,) for token in token_ids], [0.0] * len(token_ids)
        elif sampling.has_support:
            support = [tuple(sorted(kept)) for kept in meta["output_token_sampling_mask"]]
            logprobs = meta["output_token_sampling_logprobs"]
            check(
                len(support) == len(logprobs) == len(token_ids)
                and all(token in kept for token, kept in zip(token_ids, support, strict=True)),
                "sampling supports that do not hold its tokens",
            )
        check(
            all(isinstance(p, int | float) and math.isfinite(p) and p <= _MAX_LOGPROB for p in logprobs),
            f"log-probabilities that are not finite and at most 0; {_BROKEN}",
        )
        cached, num_prompt_tokens = int(meta["cached_tokens"]), int(meta["prompt_tokens"])
    except (KeyError, TypeError, IndexError) as error:
        raise ServerError(
            f"{url} answered a generation without what was asked for ({type(error).__name__}: {error}); "
            "envgym needs SGLang 0.5.23 or newer"
        ) from error
    return Generation(token_ids, [float(p) for p in logprobs], spans, support, num_prompt_tokens, cached)


def parse_spans(spans: Sequence[Mapping[str, Any]]) -> list[VersionSpan]:
    """Version spans of the library from those of the server; neighbours of one version are one span."""
    parsed: list[VersionSpan] = []
    for span in spans:
        append_span(parsed, VersionSpan(int(span["start"]), int(span["end"]), parse_version(span["version"])))
    return parsed


def version_name(version: int, run_id: str = "") -> str:
    """The name that a server is given for its weights.

    Args:
        version: Their number.
        run_id: Whose weights they are, so that those of another run with the same number are not taken for them.
    """
    return f"{run_id}:{version}" if run_id else str(version)


def parse_version(name: str | None, run_id: str = "") -> int:
    """The number in a server's name for its weights.

    Args:
        name: Such as "12", "a1b2:12", or "default", which servers call the weights they were started with.
        run_id: Whose weights are expected; anybody's when empty.

    Returns:
        The number. Of a name without one: 0 where anybody's weights are expected. `UNKNOWN_VERSION` for weights of
        another run than expected.
    """
    owner, _, number = (name or "").rpartition(":")
    if run_id and owner != run_id:
        return UNKNOWN_VERSION
    try:
        return int(number)
    except ValueError:
        return UNKNOWN_VERSION if run_id else 0
