"""The served policy: exact ids, everything recorded, and episodes that do not touch each other."""

import asyncio
import dataclasses
import json
import shutil
import time

import numpy as np
import pytest
import torch
from served_play import collect, make_agent, make_env, play, until_running

from envgym.engines.base import Policy
from envgym.engines.embedded.tiny_model import create_model
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.engines.sglang.request import (
    Aborted,
    encode_request,
    encode_sampling,
    encode_tokens,
    parse_answer,
    parse_spans,
)
from envgym.engines.sglang.routing import ServerPool
from envgym.errors import ModelError, ServerError, ServerUnreachableError
from envgym.types import SamplingParams, VersionSpan

VOCAB = 263
IM_END = 258
SERVER_FIELDS = {
    *("temperature", "top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("min_new_tokens", "n", "stop", "stop_regex", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "logit_bias", "json_schema", "regex", "ebnf"),
    *("structural_tag", "custom_params"),
}
"""All of SGLang's sampling parameters but `max_new_tokens`, which depends on the turn, and those that nobody may set:
`sampling_seed`, `beam_width`, `stream_interval`, `watermark`."""


@pytest.fixture
def policy(sglang_server):
    policy = SGLangPolicy(sglang_server.url)
    yield policy
    SGLangClient(sglang_server.url).name_weights("default")


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


# -- requests and answers ---------------------------------------------------------------------------------------------


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


def test_a_nucleus_of_a_large_vocabulary_is_drawn_from_as_many_tokens_as_the_server_reports():
    fields = encode_sampling(SamplingParams(top_p=0.9), vocab_size=150_000, max_support=4096)
    assert fields["top_k"] == 4096


def test_a_support_larger_than_the_server_reports_is_refused():
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
    with pytest.raises(ServerError, match=problem):
        parsed(**changes)


def test_a_support_without_the_drawn_token_is_an_error():
    with pytest.raises(ServerError, match="supports that do not hold its tokens"):
        parsed(SamplingParams(top_k=2), output_token_sampling_mask=[[9], [8]])


def test_an_aborted_generation_is_never_a_finished_one():
    with pytest.raises(Aborted, match="Abort in waiting queue"):
        parsed(finish_reason={"type": "abort", "message": "Abort in waiting queue"})


def test_versions_are_numbers_and_names_that_are_none_are_zero():
    spans = [{"version": v, "start": i, "end": i + 1} for i, v in enumerate(["default", "0", "3", "3", "12"])]
    assert parse_spans(spans) == [VersionSpan(0, 2, 0), VersionSpan(2, 4, 3), VersionSpan(4, 5, 12)]


# -- routing ----------------------------------------------------------------------------------------------------------


def pool(count):
    return ServerPool([SGLangClient(f"http://127.0.0.1:{9000 + i}") for i in range(count)])


def test_sessions_go_to_the_least_loaded_server_and_stay():
    servers = pool(3)
    sessions = [servers.settle(None) for _ in range(6)]
    assert [server.num_sessions for server in servers.servers] == [2, 2, 2]
    assert [servers.settle(server) for server in sessions] == sessions
    servers.leave(sessions[1])
    assert servers.settle(None) is sessions[1]
    with servers.running(servers.servers[0]):
        assert servers.settle(None) is not servers.servers[0]
    assert servers.servers[0].num_running == 0 and servers.servers[0].num_requests == 1


def test_a_server_out_of_service_keeps_no_session_and_a_late_complaint_does_not_take_it_out_again():
    servers = pool(2)
    first, second = servers.servers
    assert servers.settle(None) is first
    stint = first.stint
    servers.take_out(first, "dead", stint=stint)
    assert servers.settle(first) is second
    assert (first.num_sessions, second.num_sessions) == (0, 1)
    servers.put_in(first)
    servers.take_out(first, "dead", stint=stint)
    assert first.problem is None
    servers.take_out(first, "dead", stint=first.stint)
    servers.take_out(second, "dead too", stint=second.stint)
    assert servers.settle(second) is None and servers.problems() == "dead; dead too"
    assert servers.due() == [first, second] and servers.due() == []
    servers.probed(first)
    assert first.next_probe > second.next_probe


# -- the real server --------------------------------------------------------------------------------------------------


def test_it_is_a_policy_that_knows_its_server(policy, sglang_server):
    assert isinstance(policy, Policy)
    assert policy.version == 0 and policy.vocab_size == VOCAB
    assert policy.context_length == SGLangClient(sglang_server.url).server_info()["max_req_input_len"]
    assert SGLangPolicy(sglang_server.url, context_length=50).context_length == 50
    assert SGLangPolicy(sglang_server.url, context_length=10**6).context_length == policy.context_length


def test_a_server_with_another_vocabulary_is_refused(sglang_server, tiny_model_folder, tmp_path):
    same = shutil.copytree(tiny_model_folder, tmp_path / "same")
    assert SGLangPolicy(sglang_server.url, model_folder=same).vocab_size == VOCAB
    larger = create_model(tmp_path / "larger", hidden_size=32, num_layers=1, words=("get",))
    with pytest.raises(ModelError, match=f"a vocabulary of {VOCAB} tokens, expected {VOCAB + 1}"):
        SGLangPolicy(sglang_server.url, model_folder=larger)
    settings = json.loads((same / "tokenizer.json").read_text())
    settings["model"]["vocab"] |= {"A": 66, "B": 65}
    (same / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="'A' is token 65 there, expected 66"):
        SGLangPolicy(sglang_server.url, model_folder=same)


def test_no_server_at_an_address_is_said_at_once():
    with pytest.raises(ServerUnreachableError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        SGLangPolicy("http://127.0.0.1:9")


def test_turns_end_as_those_of_the_embedded_policy(policy):
    async def ending(prompt, **sampling):
        session = policy.open_session(seed=0)
        try:
            completion = await policy.generate(prompt, SamplingParams(**sampling), session=session)
        finally:
            policy.close_session(session)
        return completion.finish_reason, len(completion.token_ids), completion.token_ids[-1]

    async def main():
        room = policy.context_length
        assert (await ending([1, 2], max_new_tokens=3))[:2] == ("length", 3)
        reason, count, last = await ending([1, 2], max_new_tokens=500, stop_token_ids=tuple(range(100)))
        assert reason == "stop" and last < 100 and count < 500
        assert (await ending([1] * (room - 4), max_new_tokens=20))[:2] == ("context", 4)
        assert (await ending([1] * (room - 4), max_new_tokens=4))[:2] == ("length", 4)
        assert (await ending([1] * (room - 1), max_new_tokens=20))[:2] == ("context", 1)

    asyncio.run(main())


def test_only_the_given_tokens_end_a_turn_whatever_the_model_says(policy):
    """The server stops at the model's own end-of-text token as well; there the turn goes on."""
    sampling = SamplingParams(max_new_tokens=48, stop_token_ids=(5,))

    async def main():
        return await asyncio.gather(*[play(policy, seed, sampling, num_turns=1) for seed in range(48)])

    completions = [episode[0][1] for episode in asyncio.run(main())]
    went_on = [c for c in completions if IM_END in c.token_ids[:-1]]
    assert went_on, "no turn met the model's end-of-text token"
    assert sum(policy.statistics().requests.values()) > len(completions)
    for completion in completions:
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == 5 else "length")
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 48
        assert completion.version_spans == (VersionSpan(0, len(completion.token_ids), 0),)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "the prompt is empty"),
        ([1, VOCAB], f"token id {VOCAB}"),
        ([1, -1], "token id -1"),
        ([1] * 10**5, "no room"),
    ],
)
def test_a_prompt_the_server_must_not_see_is_not_sent(policy, prompt, problem):
    session = policy.open_session(seed=0)
    with pytest.raises(ValueError, match=problem):
        asyncio.run(policy.generate(prompt, SamplingParams(), session=session))
    assert sum(policy.statistics().requests.values()) == 0


def test_a_session_generates_one_turn_at_a_time_and_only_while_it_is_open(policy, sglang_server):
    async def main():
        session = policy.open_session(seed=0)
        turn = asyncio.ensure_future(policy.generate([1], SamplingParams(max_new_tokens=900), session=session))
        await until_running(sglang_server.url, 1)
        with pytest.raises(ValueError, match="already generating"):
            await policy.generate([1], SamplingParams(), session=session)
        policy.close_session(session)
        policy.close_session(session)
        with pytest.raises(ValueError, match="was closed while it was generating"):
            await turn
        with pytest.raises(ValueError, match="is not open"):
            await policy.generate([1], SamplingParams(), session=session)

    asyncio.run(main())
    assert policy.statistics().aborted == 1


def test_a_cancelled_turn_ends_on_the_server_and_no_other_does(policy, sglang_server):
    long = SamplingParams(max_new_tokens=900)

    async def main():
        sessions = [policy.open_session(seed=seed) for seed in range(3)]
        turns = [asyncio.ensure_future(policy.generate([1, 2], long, session=session)) for session in sessions]
        await until_running(sglang_server.url, 3)
        turns[1].cancel()
        results = await asyncio.gather(*turns, return_exceptions=True)
        again = await policy.generate([1, 2], SamplingParams(max_new_tokens=2), session=sessions[1])
        return results, again

    results, again = asyncio.run(main())
    assert [len(results[i].token_ids) for i in (0, 2)] == [900, 900]
    assert isinstance(results[1], asyncio.CancelledError)
    assert len(again.token_ids) == 2
    statistics = policy.statistics()
    assert (statistics.aborted, statistics.retries, statistics.turns) == (1, 0, 3)


def test_a_placeholder_session_is_nobodys_load(policy):
    agent_sessions = [policy.open_session(seed=0) for _ in range(5)]
    assert [server.load for server in policy._pool.servers] == [0]
    asyncio.run(policy.generate([1], SamplingParams(max_new_tokens=1), session=agent_sessions[0]))
    assert [server.load for server in policy._pool.servers] == [1]
    for session in agent_sessions:
        policy.close_session(session)
    assert [server.load for server in policy._pool.servers] == [0]


def test_an_abort_that_nobody_asked_for_is_generated_again(policy, sglang_server):
    client = SGLangClient(sglang_server.url)

    async def main():
        turn = asyncio.ensure_future(play(policy, 0, SamplingParams(max_new_tokens=900), num_turns=1))
        await until_running(sglang_server.url, 1)
        await asyncio.to_thread(client.pause, "abort")
        await asyncio.to_thread(client.resume)
        return await turn

    [(_, completion)] = asyncio.run(main())
    assert len(completion.token_ids) == 900 and completion.finish_reason == "length"
    statistics = policy.statistics()
    assert (statistics.retries, statistics.turns, statistics.tokens) == (1, 1, 900)


def test_each_token_has_the_version_of_the_weights_that_drew_it(policy, sglang_server):
    client = SGLangClient(sglang_server.url)
    client.name_weights("7")
    policy.weights_updated(7)

    async def main():
        turn = asyncio.ensure_future(play(policy, 0, SamplingParams(max_new_tokens=900), num_turns=1))
        await until_running(sglang_server.url, 1)
        await asyncio.to_thread(client.pause, "retract")
        await asyncio.to_thread(client.name_weights, "8")
        await asyncio.to_thread(client.resume)
        return await turn

    [(_, completion)] = asyncio.run(main())
    first, second = completion.version_spans
    assert (first.version, second.version) == (7, 8)
    assert first.start == 0 and 0 < first.end == second.start < second.end == 900


def test_a_server_with_older_weights_gives_no_turn_until_it_has_been_brought_up_to_date(policy, sglang_server):
    client = SGLangClient(sglang_server.url)
    client.name_weights("4")
    policy.weights_updated(4)
    client.name_weights("3")  # as if it had been started again, unnoticed
    brought = []

    def bring(returned, version):
        brought.append((returned.url, version))
        returned.name_weights(str(version))

    policy.on_return = bring
    [(_, completion)] = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4), num_turns=1))
    assert completion.version_spans == (VersionSpan(0, 4, 4),)
    assert brought == [(sglang_server.url, 4)]
    assert policy.statistics().out_of_service == {}


def test_weights_of_nobody_knows_whom_do_not_sample_for_a_policy_that_expects_its_own(sglang_server):
    client = SGLangClient(sglang_server.url)
    policy = SGLangPolicy(client, lineage="a1b2", recovery_timeout_s=0.3)
    try:
        for name in ("default", "0", "other:0"):
            client.name_weights(name)
            policy.weights_updated(0)
            with pytest.raises(ServerUnreachableError, match="holds other weights, expected version 0 of this run"):
                asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4)))
        client.name_weights("a1b2:0")
        policy.weights_updated(0)
        [(_, completion)] = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4), num_turns=1))
    finally:
        client.name_weights("default")
    assert completion.version_spans == (VersionSpan(0, 4, 0),)


def test_turns_wait_for_a_server_together_and_not_each_anew(sglang_server):
    policy = SGLangPolicy(sglang_server.url, recovery_timeout_s=3, probe_timeout_s=0.3)
    policy.weights_updated(5)
    waited = []
    for _ in range(3):
        started = time.monotonic()
        with pytest.raises(ServerUnreachableError, match="no policy server has been in service for 3 s"):
            asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4)))
        waited.append(time.monotonic() - started)
    assert waited[0] > 2.5 and max(waited[1:]) < 2.5
    SGLangClient(sglang_server.url).name_weights("5")
    try:  # a later turn looks again whether one is back
        assert asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4), num_turns=1))
    finally:
        SGLangClient(sglang_server.url).name_weights("default")


@pytest.mark.parametrize("pinned", [False, True])
def test_a_turn_that_somebody_elses_weights_have_finished_is_not_returned(sglang_server, pinned):
    client = SGLangClient(sglang_server.url)
    ours, theirs = ("default", "7") if pinned else ("a1b2:0", "other:0")
    client.name_weights(ours)
    policy = SGLangPolicy(client, lineage="" if pinned else "a1b2", recovery_timeout_s=0.3)
    if pinned:
        policy.pin_weights()
    policy.weights_updated(0)

    async def main():
        turn = asyncio.ensure_future(play(policy, 0, SamplingParams(max_new_tokens=900), num_turns=1))
        await until_running(sglang_server.url, 1)
        await asyncio.to_thread(client.pause, "retract")
        await asyncio.to_thread(client.name_weights, theirs)
        await asyncio.to_thread(client.resume)
        return await turn

    try:
        with pytest.raises(ServerUnreachableError, match="holds other weights, expected version 0"):
            asyncio.run(main())
        assert policy.statistics().turns == 0
        client.name_weights(ours)
        assert asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=2), num_turns=1))
    finally:
        client.name_weights("default")


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ([5, True], r"token 1 of the prompt is True \(bool\)"),
        ([1.0], r"token 0 of the prompt is 1\.0 \(float\)"),
        ("abc", "token 0 of the prompt is 'a'"),
        ([5, None], "token 1 of the prompt is None"),
    ],
)
def test_what_is_no_token_is_named_and_forgotten(policy, prompt, named):
    async def main():
        session = policy.open_session(seed=0)
        with pytest.raises(TypeError, match=named + ".*; token ids are integers"):
            await policy.generate(prompt, SamplingParams(max_new_tokens=1), session=session)
        return await policy.generate([5, 1], SamplingParams(max_new_tokens=1), session=session)

    assert len(asyncio.run(main()).token_ids) == 1


def test_other_libraries_integers_are_tokens(policy):
    async def main():
        session = policy.open_session(seed=0)
        for prompt in (np.array([5, 6]), torch.tensor([5, 6, 7]), (np.int32(5), 6)):
            assert (await policy.generate(prompt, SamplingParams(max_new_tokens=1), session=session)).token_ids

    asyncio.run(main())


def test_a_server_named_twice_is_a_slip():
    with pytest.raises(ValueError, match=r"a server is named twice: http://127.0.0.1:9, http://127.0.0.1:9;"):
        SGLangPolicy(["http://127.0.0.1:9", "http://127.0.0.1:9/"])


def test_a_stale_server_stays_out_of_service_until_the_next_weight_update(sglang_server):
    policy = SGLangPolicy(sglang_server.url, recovery_timeout_s=0.5)
    policy.weights_updated(5)
    assert "holds the weights of version 0, expected 5" in policy.statistics().out_of_service[sglang_server.url]
    with pytest.raises(ServerUnreachableError, match="holds the weights of version 0, expected 5"):
        asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4)))
    [client] = policy.clients
    client.name_weights("6")
    policy.weights_updated(6)
    try:
        played = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4)))
    finally:
        client.name_weights("default")
    assert {span.version for _, c in played for span in c.version_spans} == {6}


def test_a_policy_serves_one_event_loop_after_the_other_and_two_at_once(policy):
    sampling = SamplingParams(max_new_tokens=8)
    assert len(asyncio.run(play(policy, 0, sampling))) == len(asyncio.run(play(policy, 1, sampling))) == 3

    async def both():
        return await asyncio.gather(
            asyncio.to_thread(asyncio.run, play(policy, 2, sampling)), play(policy, 3, sampling)
        )

    assert [len(played) for played in asyncio.run(both())] == [3, 3]
    assert policy.statistics().turns == 12


def test_most_of_the_prompts_of_long_episodes_come_from_the_prefix_cache(policy, sglang_server):
    agent = make_agent(policy, sglang_server.model, max_new_tokens=24)
    collection = collect(agent, 8, env=lambda: make_env(20), concurrency=8)
    statistics = policy.statistics()
    assert sum(len(trajectory.turns) for trajectory in collection.trajectories) == statistics.turns
    assert statistics.turns == 20 * 8
    assert statistics.cached_share >= 0.8


def test_statistics_count_what_was_returned(policy):
    played = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=5), num_turns=4))
    statistics = policy.statistics()
    assert (statistics.turns, statistics.tokens) == (4, sum(len(c.token_ids) for _, c in played))
    assert statistics.prompt_tokens == sum(len(prompt) for prompt, _ in played)
    assert 0 < statistics.cached_prompt_tokens < statistics.prompt_tokens
    assert dataclasses.asdict(statistics)["requests"] == {policy.clients[0].url: 4}
