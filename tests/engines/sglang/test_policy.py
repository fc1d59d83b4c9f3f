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
from envgym.errors import ModelError, ServerUnreachableError
from envgym.types import SamplingParams, VersionSpan

VOCAB = 263
IM_END = 258


@pytest.fixture
def client(sglang_server):
    client = SGLangClient(sglang_server.url)
    yield client
    client.name_weights("default")


@pytest.fixture
def policy(client):
    return SGLangPolicy(client.url)


def one_turn(policy, tokens=4):
    [(_, completion)] = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=tokens), num_turns=1))
    return completion


def interrupted_turn(policy, client, mode, name=None):
    """A long turn during which its server is paused and, where a name is given, told that it has other weights."""

    async def main():
        turn = asyncio.ensure_future(play(policy, 0, SamplingParams(max_new_tokens=900), num_turns=1))
        await until_running(client.url, 1)
        await asyncio.to_thread(client.pause, mode)
        if name is not None:
            await asyncio.to_thread(client.name_weights, name)
        await asyncio.to_thread(client.resume)
        [(_, completion)] = await turn
        return completion

    return asyncio.run(main())


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


NO_TOKEN = "token {} of the prompt is {}.*; token ids are integers"


@pytest.mark.parametrize(
    ("prompt", "error", "problem"),
    [
        ([], ValueError, "the prompt is empty"),
        ([1, VOCAB], ValueError, f"token id {VOCAB}"),
        ([1, -1], ValueError, "token id -1"),
        ([1] * 10**5, ValueError, "no room"),
        ([5, True], TypeError, NO_TOKEN.format(1, r"True \(bool\)")),
        ([1.0], TypeError, NO_TOKEN.format(0, r"1\.0 \(float\)")),
        ("abc", TypeError, NO_TOKEN.format(0, "'a'")),
        ([5, None], TypeError, NO_TOKEN.format(1, "None")),
    ],
)
def test_a_prompt_the_server_must_not_see_is_not_sent_and_forgotten(policy, prompt, error, problem):
    async def main():
        session = policy.open_session(seed=0)
        with pytest.raises(error, match=problem):
            await policy.generate(prompt, SamplingParams(), session=session)
        assert sum(policy.statistics().requests.values()) == 0
        for other in (np.array([5, 6]), torch.tensor([5, 6, 7]), (np.int32(5), 6)):
            assert (await policy.generate(other, SamplingParams(max_new_tokens=1), session=session)).token_ids

    asyncio.run(main())


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


def test_an_abort_that_nobody_asked_for_is_generated_again(policy, client):
    completion = interrupted_turn(policy, client, "abort")
    assert len(completion.token_ids) == 900 and completion.finish_reason == "length"
    statistics = policy.statistics()
    assert (statistics.retries, statistics.turns, statistics.tokens) == (1, 1, 900)


def test_each_token_has_the_version_of_the_weights_that_drew_it(policy, client):
    client.name_weights("7")
    policy.weights_updated(7)
    first, second = interrupted_turn(policy, client, "retract", "8").version_spans
    assert (first.version, second.version) == (7, 8)
    assert first.start == 0 and 0 < first.end == second.start < second.end == 900


def test_a_server_with_older_weights_gives_no_turn_until_it_has_been_brought_up_to_date(policy, client):
    client.name_weights("4")
    policy.weights_updated(4)
    client.name_weights("3")  # as if it had been started again, unnoticed
    brought = []

    def bring(returned, version):
        brought.append((returned.url, version))
        returned.name_weights(str(version))

    policy.on_return = bring
    assert one_turn(policy).version_spans == (VersionSpan(0, 4, 4),)
    assert brought == [(client.url, 4)]
    assert policy.statistics().out_of_service == {}


def test_weights_of_nobody_knows_whom_do_not_sample_for_a_policy_that_expects_its_own(client):
    policy = SGLangPolicy(client, run_id="a1b2", recovery_timeout_s=0.3)
    for name in ("default", "0", "other:0"):
        client.name_weights(name)
        policy.weights_updated(0)
        with pytest.raises(ServerUnreachableError, match="holds other weights, expected version 0 of this run"):
            one_turn(policy)
    client.name_weights("a1b2:0")
    policy.weights_updated(0)
    assert one_turn(policy).version_spans == (VersionSpan(0, 4, 0),)


def test_turns_wait_for_a_server_together_and_not_each_anew(client):
    policy = SGLangPolicy(client.url, recovery_timeout_s=3, probe_timeout_s=0.3)
    policy.weights_updated(5)
    waited = []
    for _ in range(3):
        started = time.monotonic()
        with pytest.raises(ServerUnreachableError, match="no policy server has been in service for 3 s"):
            one_turn(policy)
        waited.append(time.monotonic() - started)
    assert waited[0] > 2.5 and max(waited[1:]) < 2.5
    client.name_weights("5")
    assert one_turn(policy)  # a later turn looks again whether one is back


@pytest.mark.parametrize("pinned", [False, True])
def test_a_turn_that_somebody_elses_weights_have_finished_is_not_returned(client, pinned):
    ours, theirs = ("default", "7") if pinned else ("a1b2:0", "other:0")
    client.name_weights(ours)
    policy = SGLangPolicy(client, run_id="" if pinned else "a1b2", recovery_timeout_s=3)
    if pinned:
        policy.pin_weights()
    policy.weights_updated(0)
    with pytest.raises(ServerUnreachableError, match="holds other weights, expected version 0"):
        interrupted_turn(policy, client, "retract", theirs)
    assert policy.statistics().turns == 0
    client.name_weights(ours)
    assert one_turn(policy, 2)


def test_a_server_named_twice_is_a_slip():
    with pytest.raises(ValueError, match=r"a server is named twice: http://127.0.0.1:9, http://127.0.0.1:9;"):
        SGLangPolicy(["http://127.0.0.1:9", "http://127.0.0.1:9/"])


def test_a_stale_server_stays_out_of_service_until_the_next_weight_update(client):
    policy = SGLangPolicy(client.url, recovery_timeout_s=0.5)
    policy.weights_updated(5)
    assert "holds the weights of version 0, expected 5" in policy.statistics().out_of_service[client.url]
    with pytest.raises(ServerUnreachableError, match="holds the weights of version 0, expected 5"):
        one_turn(policy)
    client.name_weights("6")
    policy.weights_updated(6)
    played = asyncio.run(play(policy, 0, SamplingParams(max_new_tokens=4)))
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
