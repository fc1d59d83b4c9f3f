"""What the server sampled is what the learner trains on: the same tokens, equally probable, and no text between."""

import asyncio

import pytest
import torch
from served_play import collect, make_agent, play, recomputed, turns

from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.model_folder import load_tokenizer
from envgym.types import SamplingParams, TruncationReason

EPISODES = 170
"""Of six turns: a thousand turns."""


@pytest.fixture(scope="module")
def served(sglang_server):
    return SGLangPolicy(sglang_server.url)


@pytest.fixture(scope="module")
def embedded(sglang_server, served):
    return TorchPolicy(sglang_server.model, max_concurrency=64, context_length=served.context_length)


def test_greedy_play_is_that_of_the_embedded_policy_token_for_token(sglang_server, served, embedded):
    theirs, ours = [
        collect(make_agent(policy, sglang_server.model, temperature=0.0, max_new_tokens=6), EPISODES, concurrency=64)
        for policy in (served, embedded)
    ]
    assert len(turns(theirs.trajectories)) >= 700
    difference = 0.0
    for their, our in zip(turns(theirs.trajectories), turns(ours.trajectories), strict=True):
        assert their.observation_ids == our.observation_ids
        assert their.action_ids == our.action_ids
        assert their.finish_reason == our.finish_reason
        gaps = [abs(a - b) for a, b in zip(their.behavior_logprobs, our.behavior_logprobs, strict=True)]
        difference = max(difference, *gaps)
    assert difference < 1e-4


@pytest.mark.parametrize(
    ("episodes", "sampling"),
    [
        (EPISODES, {}),
        (16, {"temperature": 0.6}),
        (24, {"temperature": 1.3, "top_k": 7}),
        (24, {"temperature": 0.8, "top_p": 0.7}),
        (24, {"temperature": 0.7, "top_k": 20, "top_p": 0.6}),
        (8, {"top_k": 1}),
    ],
    ids=str,
)
def test_the_learner_gives_the_sampled_tokens_the_servers_log_probabilities(sglang_server, served, episodes, sampling):
    agent = make_agent(served, sglang_server.model, **sampling)
    collection = collect(agent, episodes, concurrency=64)
    trajectories = collection.trajectories
    if not sampling:
        assert len(turns(trajectories)) >= 1000
    for turn in turns(trajectories):
        assert (turn.support is not None) == SamplingParams(**sampling).has_support
        assert turn.support is None or all(t in kept for t, kept in zip(turn.action_ids, turn.support, strict=True))
    ours, recorded = recomputed(sglang_server.model, trajectories, sampling.get("temperature", 1.0))
    assert len(ours) == sum(trajectory.num_action_tokens for trajectory in trajectories) > episodes
    assert (ours - recorded).abs().max() < 1e-4
    ratios = (ours - recorded).exp()  # of the first update
    assert (ratios - 1).abs().max() < 1e-3


@pytest.mark.parametrize("sampling", [{"top_k": 7, "temperature": 1.3}, {"top_p": 0.5, "temperature": 0.8}], ids=str)
def test_the_server_draws_from_the_same_tokens_as_the_embedded_policy(served, embedded, sampling):
    """At the same place, the two engines cut the vocabulary alike."""
    params = SamplingParams(max_new_tokens=4, **sampling)
    supports = {}
    for name, policy in (("served", served), ("embedded", embedded)):

        async def first_tokens(policy=policy):
            sessions = [policy.open_session(seed=seed) for seed in range(16)]
            completions = await asyncio.gather(
                *[policy.generate([65 + i, 66, 258], params, session=s) for i, s in enumerate(sessions)]
            )
            for session in sessions:
                policy.close_session(session)
            return completions

        supports[name] = [completion.support[0] for completion in asyncio.run(first_tokens())]
    assert supports["served"] == supports["embedded"]


def test_the_recorded_stream_is_what_the_server_saw_and_rendering_it_from_text_would_drift(sglang_server, served):
    """Prompts are append-only: decoding the sampled tokens and encoding the text again would have changed them."""
    collection = collect(make_agent(served, sglang_server.model, stop_token_ids=tuple(range(64))), 16)
    tokenizer = load_tokenizer(sglang_server.model)
    drifted = 0
    for trajectory in collection.trajectories:
        ids, mask = trajectory.token_stream()
        again = tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)
        if again == ids:
            continue
        drifted += 1
        first = next((i for i, (a, b) in enumerate(zip(ids, again, strict=False)) if a != b), min(len(ids), len(again)))
        # The observations, tokenised once from text, come back alike: what drifts is what was sampled.
        assert first == len(again) or mask[first], f"token {first} of seed {trajectory.seed} was not sampled"
    assert drifted > len(collection.trajectories) // 2, "no conversation would have drifted"
    ours, recorded = recomputed(sglang_server.model, collection.trajectories, 1.0)
    assert (ours - recorded).abs().max() < 1e-4


def test_a_prompt_is_the_last_prompt_its_completion_and_the_new_message(served):
    """The server computes prompts from the very ids that it sampled: all of them come from its cache."""
    sampling = SamplingParams(max_new_tokens=12)
    before = served.statistics()
    played = asyncio.run(play(served, 12345, sampling, num_turns=6))
    after = served.statistics()
    grown = sum(len(prompt) for prompt, _ in played[1:])
    known = sum(len(prompt) + len(c.token_ids) - 1 for prompt, c in played[:-1])
    cached = after.cached_prompt_tokens - before.cached_prompt_tokens
    assert known <= cached <= grown


def test_a_conversation_that_fills_the_context_is_cut_and_bootstrapped(sglang_server):
    policy = SGLangPolicy(sglang_server.url, context_length=120)
    agent = make_agent(policy, sglang_server.model, max_new_tokens=40, stop_token_ids=tuple(range(0, 256, 16)))
    collection = collect(agent, 24)
    assert collection.failed == ()
    cut = [t for t in collection.trajectories if t.truncation_reason is TruncationReason.CONTEXT_OVERFLOW]
    assert {t.turns[-1].finish_reason for t in cut if t.turns} >= {"context"}
    assert all(t.truncated and not t.terminated and t.num_tokens <= 120 for t in cut)
    ours, recorded = recomputed(sglang_server.model, [t for t in cut if t.num_action_tokens], 1.0)
    assert torch.allclose(ours, recorded, atol=1e-4)
