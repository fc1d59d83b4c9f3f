"""The embedded policy: right log-probabilities, right endings, and draws that timing cannot change."""

import asyncio
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from envgym.engines.base import Policy
from envgym.engines.embedded import policy as torch_policy
from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.embedded.scheduler import Scheduler
from envgym.engines.embedded.tiny_model import create_model
from envgym.errors import ModelError, WeightSyncError
from envgym.types import SamplingParams, VersionSpan

VOCAB, CONTEXT = 61, 128


def random_model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4} | changes
    config = Qwen3Config(
        vocab_size=VOCAB,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=True,
        **sizes,
    )
    return AutoModelForCausalLM.from_config(config).float().eval()


MODEL = random_model()


async def play(policy, seed, session, sampling, *, turns=4, delays=None):
    """One episode whose observations follow from the seed; returns its (prompt, completion) pairs."""
    rng = random.Random(seed)
    prompt, played = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))], []
    try:
        for _ in range(turns):
            if delays is not None:
                await asyncio.sleep(delays.random() * 0.003)
            completion = await policy.generate(prompt, sampling, session=session)
            played.append((list(prompt), completion))
            prompt = prompt + list(completion.token_ids) + [rng.randrange(VOCAB) for _ in range(rng.randrange(8))]
    finally:
        policy.close_session(session)
    return played


def run(policy, seeds, sampling, **settings):
    async def main():
        sessions = {seed: policy.open_session(seed=seed) for seed in seeds}
        return await asyncio.gather(*[play(policy, *each, sampling, **settings) for each in sessions.items()])

    return asyncio.run(main())


def assert_logprobs_are_those_of(model, episodes, sampling):
    """Every log-probability equals log_softmax(logits / T) of the transformers model, renormalised over the support."""
    temperature, compared = sampling.temperature or 1.0, 0
    for played in episodes:
        for prompt, completion in played:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + list(completion.token_ids)])).logits[0, len(prompt) - 1 : -1]
            want = (logits.double() / temperature).log_softmax(-1)
            for k, token in enumerate(completion.token_ids):
                kept = want[k] if completion.support is None else want[k][list(completion.support[k])]
                assert completion.logprobs[k] == pytest.approx((want[k][token] - kept.logsumexp(0)).item(), abs=1e-4)
                compared += 1
    assert compared > 50


SAMPLINGS = {
    "temperature 1": SamplingParams(max_new_tokens=9),
    "temperature 0.6 with stop tokens": SamplingParams(max_new_tokens=9, temperature=0.6, stop_token_ids=(3, 5, 7)),
    "greedy": SamplingParams(max_new_tokens=9, temperature=0.0),
    "top-k": SamplingParams(max_new_tokens=9, temperature=1.2, top_k=5),
    "top-p": SamplingParams(max_new_tokens=9, top_p=0.8),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_logprobs_of_more_sessions_than_slots_equal_those_of_transformers(name, deterministic):
    sampling = SAMPLINGS[name]
    policy = TorchPolicy(MODEL, max_concurrency=3, deterministic=deterministic)
    episodes = run(policy, range(8), sampling)
    assert [len(played) for played in episodes] == [4] * 8
    assert_logprobs_are_those_of(MODEL, episodes, sampling)
    for played in episodes:
        for _, completion in played:
            assert (completion.support is not None) == sampling.has_support
            if completion.support is not None:
                assert all(t in kept for t, kept in zip(completion.token_ids, completion.support, strict=True))
                assert sampling.top_k == 0 or {len(kept) for kept in completion.support} == {sampling.top_k}
            assert completion.version_spans == (VersionSpan(0, len(completion.token_ids), 0),)


def test_a_folder_gives_the_same_policy_as_the_model_in_it(tmp_path):
    policy = TorchPolicy(create_model(tmp_path))
    assert isinstance(policy, Policy)
    assert (policy.version, policy.context_length, policy.vocab_size) == (0, 1024, 263)
    assert TorchPolicy(tmp_path, context_length=100).context_length == 100


def test_greedy_turns_on_a_kept_cache_equal_turns_from_nothing():
    sampling = SamplingParams(max_new_tokens=9, temperature=0.0)
    (played,) = run(TorchPolicy(MODEL), [4], sampling, turns=6)
    assert sum(len(completion.token_ids) for _, completion in played) == 54
    for prompt, completion in played:
        policy = TorchPolicy(MODEL)
        cold = asyncio.run(policy.generate(prompt, sampling, session=policy.open_session(seed=0)))
        assert cold.token_ids == completion.token_ids
        assert cold.logprobs == pytest.approx(completion.logprobs, abs=1e-4)


def test_a_turn_computes_only_what_its_prompt_adds(monkeypatch):
    policy, computed = TorchPolicy(MODEL), []
    prefill = policy._scheduler.decoder.prefill

    def spy(tokens, starts, slots):
        computed.extend(map(len, tokens))
        prefill(tokens, starts, slots)

    monkeypatch.setattr(policy._scheduler.decoder, "prefill", spy)

    async def main():
        session = policy.open_session(seed=0)
        first = await policy.generate([1] * 30, SamplingParams(max_new_tokens=5), session=session)
        await policy.generate([1] * 30 + [*first.token_ids, 2, 3], SamplingParams(max_new_tokens=5), session=session)

    asyncio.run(main())
    # The last token of a prompt is fed like a sampled one; the last sampled one was never fed.
    assert computed == [29, 2]


def test_a_prompt_that_diverges_from_the_cache_is_right():
    sampling = SamplingParams(max_new_tokens=20)
    policy = TorchPolicy(MODEL)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 9, 9, 9], [1, 2, 3], [8] * 40, [8] * 39 + [1, 2]]

    async def main():
        session = policy.open_session(seed=0)
        return [[(prompt, await policy.generate(prompt, sampling, session=session)) for prompt in prompts]]

    assert_logprobs_are_those_of(MODEL, asyncio.run(main()), sampling)


def test_idle_sessions_hold_up_nobody_lose_their_slot_least_recently_used_first_and_come_back_right():
    sampling = SamplingParams(max_new_tokens=10)
    policy = TorchPolicy(MODEL, max_concurrency=2, deterministic=False)

    async def main():
        a, b, c = (policy.open_session(seed=seed) for seed in range(3))
        prompts = {session: [session + 1] * 10 for session in (a, b, c)}
        played = []

        async def turn(session):
            completion = await policy.generate(prompts[session], sampling, session=session)
            played.append((prompts[session], completion))
            prompts[session] = [*prompts[session], *completion.token_ids, 5]

        slots = []
        for session in (a, b, a, c, b, a):
            await turn(session)
            slots.append({s for s in (a, b, c) if policy._sessions[s].slot is not None})
        assert slots == [{a}, {a, b}, {a, b}, {a, c}, {b, c}, {a, b}]
        return [played]

    assert_logprobs_are_those_of(MODEL, asyncio.run(asyncio.wait_for(main(), 10)), sampling)


def test_deterministic_mode_draws_the_same_bits_whatever_the_timing():
    sampling = SamplingParams(max_new_tokens=9, stop_token_ids=(3, 5, 7, 9, 11))
    want = run(TorchPolicy(MODEL, max_concurrency=4), range(9), sampling)
    lengths = {len(completion.token_ids) for played in want for _, completion in played}
    assert len(lengths) > 3, "turns should vary in length"
    for attempt in range(4):
        shuffled = list(range(9))
        random.Random(attempt).shuffle(shuffled)
        delays = random.Random(100 + attempt)
        got = run(TorchPolicy(MODEL, max_concurrency=4), shuffled, sampling, delays=delays)
        assert [got[shuffled.index(seed)] for seed in range(9)] == want


def test_what_a_session_draws_follows_its_seed_not_its_company():
    sampling = SamplingParams(max_new_tokens=9)
    together = run(TorchPolicy(MODEL), range(6), sampling)
    for seed, played in enumerate(together):
        (alone,) = run(TorchPolicy(MODEL), [seed], sampling)
        assert [completion.token_ids for _, completion in alone] == [completion.token_ids for _, completion in played]
    assert together[0][0][1].token_ids != together[1][0][1].token_ids


def test_deterministic_mode_waits_for_a_session_and_names_it_in_the_log_until_it_closes(monkeypatch, caplog):
    monkeypatch.setattr(torch_policy, "_STALL_S", 0.02)
    policy = TorchPolicy(MODEL)

    async def main():
        stepping, ready = policy.open_session(seed=0), policy.open_session(seed=1)
        turn = asyncio.create_task(policy.generate([1], SamplingParams(max_new_tokens=3), session=ready))
        await asyncio.sleep(0.05)
        assert not turn.done()
        policy.close_session(stepping)
        policy.close_session(stepping)
        assert len((await turn).token_ids) == 3
        return stepping

    session = asyncio.run(main())
    (record,) = caplog.records
    assert f"session {session} " in record.getMessage() and "close" in record.getMessage()


def test_other_coroutines_run_between_steps():
    policy = TorchPolicy(MODEL)

    async def main():
        session, laps = policy.open_session(seed=0), 0
        turn = asyncio.create_task(policy.generate([1], SamplingParams(max_new_tokens=40), session=session))
        while not turn.done():
            await asyncio.sleep(0)
            laps += 1
        return laps

    assert asyncio.run(main()) >= 40


async def generate_and_close(policy, prompt, sampling, session):
    try:
        return await asyncio.wait_for(policy.generate(prompt, sampling, session=session), 10)
    finally:
        policy.close_session(session)


def generate(policy, prompt, sampling):
    return asyncio.run(generate_and_close(policy, prompt, sampling, policy.open_session(seed=3)))


def test_finish_reasons():
    policy = TorchPolicy(MODEL)
    free = generate(policy, [1, 2], SamplingParams(max_new_tokens=30))
    assert free.finish_reason == "length" and len(free.token_ids) == 30
    stop = free.token_ids[7]
    at = free.token_ids.index(stop)
    stopped = generate(policy, [1, 2], SamplingParams(max_new_tokens=30, stop_token_ids=(VOCAB + 5, stop)))
    assert stopped.finish_reason == "stop" and stopped.token_ids == free.token_ids[: at + 1]
    on_the_last = generate(policy, [1, 2], SamplingParams(max_new_tokens=at + 1, stop_token_ids=(stop,)))
    assert on_the_last.finish_reason == "stop"
    full = generate(policy, [1] * (CONTEXT - 5), SamplingParams(max_new_tokens=30))
    assert full.finish_reason == "context" and len(full.token_ids) == 5
    exact = generate(policy, [1] * (CONTEXT - 5), SamplingParams(max_new_tokens=5))
    assert exact.finish_reason == "length"
    short = generate(TorchPolicy(MODEL, context_length=20), [1] * 17, SamplingParams(max_new_tokens=30))
    assert short.finish_reason == "context" and len(short.token_ids) == 3
    played = [([1, 2], free), ([1, 2], stopped), ([1] * (CONTEXT - 5), full)]
    assert_logprobs_are_those_of(MODEL, [played * 2], SamplingParams())


NO_TOKEN = r"token \d of the prompt is .*; token ids are integers"


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ([], ValueError, "the prompt is empty"),
        ([1, VOCAB], ValueError, rf"token id {VOCAB} .*outside the model's vocabulary \[0, {VOCAB}\)"),
        ([-1, 1], ValueError, "token id -1"),
        ([1] * CONTEXT, ValueError, f"leaves no room in the context of {CONTEXT}.*at most {CONTEXT - 1} tokens"),
        *((prompt, TypeError, NO_TOKEN) for prompt in ([5, True], [1.0], "abc", [5, None])),
    ],
)
def test_bad_prompts_are_refused_and_the_session_still_works(prompt, error, message):
    policy = TorchPolicy(MODEL, max_concurrency=1)

    async def main():
        session = policy.open_session(seed=0)
        with pytest.raises(error, match=message):
            await policy.generate(prompt, SamplingParams(), session=session)
        for other in ([5, 1], np.array([5, 1, 7]), torch.tensor([5, 1, 7])):
            assert len((await policy.generate(other, SamplingParams(max_new_tokens=2), session=session)).token_ids) == 2

    asyncio.run(main())


def test_sessions_that_are_unknown_closed_or_busy_are_refused():
    policy = TorchPolicy(MODEL)

    async def main():
        with pytest.raises(ValueError, match="session 77 is not open"):
            await policy.generate([1], SamplingParams(), session=77)
        session = policy.open_session(seed=0)
        turn = asyncio.create_task(policy.generate([1], SamplingParams(max_new_tokens=50), session=session))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="already generating"):
            await policy.generate([1], SamplingParams(), session=session)
        policy.close_session(session)
        with pytest.raises(ValueError, match="closed while it was generating"):
            await turn

    asyncio.run(main())


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="max_concurrency"):
        TorchPolicy(MODEL, max_concurrency=0)
    with pytest.raises(ValueError, match="context_length"):
        TorchPolicy(MODEL, context_length=CONTEXT + 1)
    with pytest.raises(ValueError, match="seed"):
        TorchPolicy(MODEL).open_session(seed=-1)


@pytest.mark.parametrize("after", [0, 5])
def test_cancelling_a_turn_frees_its_row_and_the_session_goes_on(after):
    sampling = SamplingParams(max_new_tokens=30)
    policy = TorchPolicy(MODEL, max_concurrency=1)

    async def main():
        session, other = policy.open_session(seed=0), policy.open_session(seed=1)
        turn = asyncio.create_task(policy.generate([1, 2, 3], sampling, session=session))
        queued = asyncio.create_task(generate_and_close(policy, [4], sampling, other))
        for _ in range(after + 1):
            await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        again = await generate_and_close(policy, [1, 2, 3, 4], sampling, session)
        return [[([1, 2, 3, 4], again), ([4], await queued)]]

    assert_logprobs_are_those_of(MODEL, asyncio.run(asyncio.wait_for(main(), 10)), sampling)


def test_an_error_in_a_step_fails_all_turns_instead_of_hanging_and_the_policy_recovers(monkeypatch):
    sampling = SamplingParams(max_new_tokens=9)
    policy = TorchPolicy(MODEL, max_concurrency=2)
    decode, calls = Scheduler._decode, []

    def fail_at_the_fourth(self, rows):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return decode(self, rows)

    monkeypatch.setattr(Scheduler, "_decode", fail_at_the_fourth)

    async def main():
        sessions = [policy.open_session(seed=seed) for seed in range(3)]
        turns = [policy.generate([1, 2], sampling, session=session) for session in sessions]
        failed = await asyncio.wait_for(asyncio.gather(*turns, return_exceptions=True), 10)
        assert [str(error) for error in failed] == ["out of memory"] * 3
        turns = [play(policy, seed, session, sampling) for seed, session in enumerate(sessions)]
        return await asyncio.wait_for(asyncio.gather(*turns), 10)

    assert_logprobs_are_those_of(MODEL, asyncio.run(main()), sampling)


def test_weights_that_are_not_finite_are_an_error():
    model = random_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        generate(TorchPolicy(model), [1], SamplingParams())


def test_the_policy_works_in_one_event_loop_after_another_even_when_one_was_left_in_mid_turn():
    policy, sampling = TorchPolicy(MODEL), SamplingParams(max_new_tokens=9)
    first = run(policy, range(3), sampling)

    async def abandon():
        asyncio.create_task(play(policy, 5, policy.open_session(seed=5), sampling))  # noqa: RUF006
        for _ in range(4):
            await asyncio.sleep(0)

    asyncio.run(abandon())
    assert run(policy, range(3), sampling) == first


def test_new_weights_in_mid_turn_split_its_spans_and_sample_the_rest():
    other, sampling = random_model(seed=9), SamplingParams(max_new_tokens=30)
    policy = TorchPolicy(MODEL)

    async def main():
        session = policy.open_session(seed=0)
        turn = asyncio.create_task(policy.generate([1, 2, 3], sampling, session=session))
        while policy._scheduler.num_steps < 12:
            await asyncio.sleep(0)
        policy.load_weights(other.state_dict().items(), version=4)
        assert policy.version == 4
        return await turn

    completion = asyncio.run(main())
    assert completion.version_spans == (VersionSpan(0, 12, 0), VersionSpan(12, 30, 4))
    assert len(completion.token_ids) == 30
    ids = torch.tensor([[1, 2, 3, *completion.token_ids]])
    for model, start, end in ((MODEL, 0, 12), (other, 12, 30)):
        with torch.no_grad():
            logprobs = model(ids).logits[0, 2:-1].log_softmax(-1)
        want = logprobs[range(start, end), list(completion.token_ids[start:end])]
        assert completion.logprobs[start:end] == pytest.approx(want.tolist(), abs=1e-4)


def test_the_next_turn_uses_new_weights_and_neither_its_old_cache_nor_the_senders_tensors():
    other, sampling = random_model(seed=9), SamplingParams(max_new_tokens=60)
    policy = TorchPolicy(MODEL)
    # The head is tied, so it may be left out.
    sent = {name: tensor.clone() for name, tensor in other.state_dict().items() if name != "lm_head.weight"}

    async def main():
        session = policy.open_session(seed=0)
        first = await policy.generate([1, 2, 3], SamplingParams(max_new_tokens=9), session=session)
        policy.load_weights(sent.items(), version=2)
        for tensor in sent.values():
            tensor.zero_()
        prompt = [1, 2, 3, *first.token_ids]
        return [[(prompt, await policy.generate(prompt, sampling, session=session))]]

    assert_logprobs_are_those_of(other, asyncio.run(main()), sampling)
    assert policy.version == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: [*state, ("model.norm.bias", state[0][1])], r"unknown parameter 'model\.norm\.bias'"),
        (lambda state: [*state, state[0]], "arrived twice"),
        (lambda state: [(state[0][0], state[0][1][:-1]), *state[1:]], r"has shape \(60, 32\), expected \(61, 32\)"),
        (lambda state: state[1:], r"1 parameters did not arrive \(the first is 'model\.embed_tokens\.weight'\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_go_on(change, message):
    sampling = SamplingParams(max_new_tokens=60)
    policy, given = TorchPolicy(MODEL), change(list(random_model(seed=9).state_dict().items()))
    left = iter(given)
    with pytest.raises(WeightSyncError, match=f"version 0 stays: .*{message}"):
        policy.load_weights(left, 1)
    assert next(left, None) is None, "ranks that gather the rest of the weights would wait for this one"
    assert policy.version == 0
    assert_logprobs_are_those_of(MODEL, [[([1], generate(policy, [1], sampling))]], sampling)
