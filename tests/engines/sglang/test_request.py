"""Requests to servers, what their answers mean, and the names of weights."""

import json

import pytest

from envgym.engines.sglang.request import (
    UNKNOWN_VERSION,
    Aborted,
    encode_request,
    encode_sampling,
    encode_tokens,
    parse_answer,
    parse_spans,
    parse_version,
    version_name,
)
from envgym.errors import ServerError
from envgym.types import SamplingParams, VersionSpan

VOCAB = 263
SERVER_FIELDS = {
    *("temperature", "top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("min_new_tokens", "n", "stop", "stop_regex", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "logit_bias", "json_schema", "regex", "ebnf"),
    *("structural_tag", "custom_params"),
}
"""All of SGLang's sampling parameters but `max_new_tokens`, which depends on the turn, and those that nobody may set:
`sampling_seed`, `beam_width`, `stream_interval`, `watermark`."""


def answer(**changes):
    meta = {
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "output_token_logprobs": [[-1.0, 7, None], [-2.0, 8, None]],
        "weight_versions": [{"version": "4", "start": 0, "end": 2}],
        "output_token_sampling_mask": [[9, 7], [8]],
        "output_token_sampling_logprobs": [-0.5, 0.0],
    }
    return {"output_ids": changes.pop("output_ids", [7, 8]), "meta_info": meta | changes}


def parsed(sampling=SamplingParams(), **changes):
    return parse_answer(answer(**changes), sampling, url="http://s", vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("sampling", "top_k", "top_p"),
    [
        (SamplingParams(), -1, 1.0),
        (SamplingParams(temperature=0, top_k=5, top_p=0.5), 1, 1.0),
        (SamplingParams(top_k=5), 5, 1.0),
        (SamplingParams(top_k=1000, top_p=0.9), VOCAB, 0.9),
        (SamplingParams(top_p=0.9), VOCAB, 0.9),
    ],
)
def test_every_sampling_field_is_sent(sampling, top_k, top_p):
    fields = encode_sampling(sampling, vocab_size=VOCAB, max_support=4096)
    assert set(fields) == SERVER_FIELDS
    assert (fields["top_k"], fields["top_p"], fields["temperature"]) == (top_k, top_p, sampling.temperature)


def test_a_large_vocabulary_is_drawn_from_as_many_tokens_as_the_server_reports():
    fields = encode_sampling(SamplingParams(top_p=0.9), vocab_size=150_000, max_support=4096)
    assert fields["top_k"] == 4096
    with pytest.raises(ValueError, match="top_k 5000 is more than the 4096"):
        encode_sampling(SamplingParams(top_k=5000), vocab_size=150_000, max_support=4096)


def test_a_request_is_the_json_of_its_fields():
    body = json.loads(encode_request(encode_tokens([5, 0, 262]), "r" * 32, {"n": 1}, with_support=True))
    assert body["input_ids"] == [5, 0, 262]
    assert body["rid"] == "r" * 32 and body["sampling_params"] == {"n": 1}
    assert body["return_logprob"] is True and body["return_sampling_mask"] is True


def test_an_answer_is_read_with_the_log_probabilities_of_what_was_drawn_from():
    whole = parsed()
    assert (whole.token_ids, whole.logprobs, whole.support) == ([7, 8], [-1.0, -2.0], None)
    assert whole.version_spans == [VersionSpan(0, 2, 4)]
    assert (whole.num_prompt_tokens, whole.num_cached_tokens) == (3, 2)
    cut = parsed(SamplingParams(top_k=2))
    assert (cut.logprobs, cut.support) == ([-0.5, 0.0], [(7, 9), (8,)])
    one = parsed(SamplingParams(top_k=1))
    assert (one.logprobs, one.support) == ([0.0, 0.0], [(7,), (8,)])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"output_token_sampling_mask": [[9], [8]]}, "supports that do not hold its tokens"),
        ({"output_ids": [7, 9]}, "ids that are not those of its log-probabilities"),
        ({"output_token_logprobs": [[-1.0, 7, None]]}, "ids that are not those"),
        ({"output_token_logprobs": [[None, 7, None], [-2.0, 8, None]]}, "not finite"),
        ({"output_token_logprobs": [[0.5, 7, None], [-2.0, 8, None]]}, "not finite and at most 0"),
        ({"output_ids": [], "output_token_logprobs": []}, "no token"),
        ({"output_ids": [7, 263], "output_token_logprobs": [[-1, 7, None], [-1, 263, None]]}, "outside the vocabulary"),
        ({"weight_versions": [{"version": "4", "start": 0, "end": 1}]}, "do not cover its 2 tokens"),
        ({"weight_versions": [{"version": "4", "start": 1, "end": 2}]}, "do not cover"),
        ({"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "NaN logits"),
        ({"weight_versions": None}, "needs SGLang 0.5.23"),
    ],
)
def test_an_answer_that_is_not_sound_is_an_error(changes, problem):
    sampling = SamplingParams(top_k=2 if "output_token_sampling_mask" in changes else 0)
    with pytest.raises(ServerError, match=problem):
        parsed(sampling, **changes)


def test_an_aborted_generation_is_never_a_finished_one():
    with pytest.raises(Aborted, match="Abort in waiting queue"):
        parsed(finish_reason={"type": "abort", "message": "Abort in waiting queue"})


def test_versions_are_numbers_and_names_that_are_none_are_zero():
    spans = [{"version": v, "start": i, "end": i + 1} for i, v in enumerate(["default", "0", "3", "3", "12"])]
    assert parse_spans(spans) == [VersionSpan(0, 2, 0), VersionSpan(2, 4, 3), VersionSpan(4, 5, 12)]


@pytest.mark.parametrize(
    ("name", "run_id", "version"),
    [
        *((version_name(12, run_id), run_id, 12) for run_id in ("", "a1b2")),
        # Any weights may sample where no run is named; elsewhere those of another run have no version.
        *(("default", "", 0), (None, "", 0), ("", "", 0), ("7", "", 7), ("a1b2:7", "", 7)),
        *((name, "a1b2", UNKNOWN_VERSION) for name in ("default", "0", "12", "other:12", "incomplete", "a1b2")),
        *((name, "a1b2", UNKNOWN_VERSION) for name in ("a1b2:", "", None)),
    ],
)
def test_a_name_stands_for_its_version_and_weights_of_another_run_have_none(name, run_id, version):
    assert parse_version(name, run_id) == version
