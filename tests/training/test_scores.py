"""From the engine to the learner and back: one set of weights, one set of log-probabilities."""

import asyncio
import copy

import pytest
import torch
from fakes import Countdown
from tiny_learner import CPU
from tiny_runs import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from envgym.agents.policy_agent import PolicyAgent
from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.embedded.tiny_model import create_model
from envgym.errors import WeightSyncError
from envgym.learner.batch import collate, make_sample
from envgym.learner.checkpoint import export_model
from envgym.learner.distributed import process_group
from envgym.learner.learner import Learner
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.types import SamplingParams
from envgym.weights import weight_buckets

SAMPLINGS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"temperature": 1.2, "top_k": 12},
    "top-p": {"temperature": 0.8, "top_p": 0.7},
    "both": {"top_k": 40, "top_p": 0.9},
}


def give(policy, module, version, **size):
    """Has a policy sample with the weights of a module."""
    policy.load_weights((entry for bucket in weight_buckets(module, **size) for entry in bucket), version)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_model(
        tmp_path_factory.mktemp("model"), hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, context_length=128
    )


@pytest.fixture(scope="module")
def mesh():
    with process_group(CPU) as mesh:
        yield mesh


def collect(policy, folder, sampling, count=12):
    """Episodes of several turns; a quarter of the vocabulary ends a turn, so that some are cut and some are not."""
    renderer = ChatMLRenderer(AutoTokenizer.from_pretrained(folder))
    params = SamplingParams(max_new_tokens=6, stop_token_ids=tuple(range(64)), **sampling)
    collector = Collector(lambda: Countdown(length=3, role="tool"), concurrency=5)
    collected = collector.collect(
        PolicyAgent(policy, renderer, params), [EpisodeRequest(seed, seed) for seed in range(count)]
    )
    collector.close()
    return collected.trajectories


def make_learner(folder, mesh, sampling=None, **sections):
    rollout = {"episodes_per_iteration": 8, **(sampling or {})}
    config = tiny("unused", rollout=rollout, critic={"optimizer": {"learning_rate": 1e-3}}, **sections)
    return Learner(AutoModelForCausalLM.from_pretrained(folder), config, mesh=mesh, device=CPU)


def samples_of(trajectories):
    return [make_sample(trajectory, index) for index, trajectory in enumerate(trajectories)]


def scored(learner, samples):
    batch = collate(samples, dtype=learner.dtype, device=CPU)
    learner.score(batch)
    return batch


def gap(batch):
    """The largest difference between the log-probabilities of the learner and of the engine."""
    return (batch.proximal_logprobs - batch.behavior_logprobs)[batch.action_mask].abs().max()


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_learner_gives_sampled_tokens_the_logprobs_of_the_engine(folder, mesh, name):
    sampling = SAMPLINGS[name]
    samples = samples_of(collect(TorchPolicy(folder), folder, sampling))
    assert len({sample.ending for sample in samples}) > 1 and sum(s.action_mask.sum() for s in samples) > 60
    assert all((sample.support is not None) == (name in ("top-k", "top-p", "both")) for sample in samples)
    learner = make_learner(folder, mesh, sampling)
    assert gap(scored(learner, samples)) < 1e-4
    metrics = learner.train_on(samples, seed=0)
    assert metrics["policy/first_ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["mismatch/max_abs"] < 1e-4
    assert metrics["mismatch/effective_sample_share"] == pytest.approx(1.0, abs=1e-4)


def test_a_forgotten_temperature_would_be_seen(folder, mesh):
    samples = samples_of(collect(TorchPolicy(folder), folder, {"temperature": 0.6}))
    metrics = make_learner(folder, mesh, {"temperature": 1.0}).train_on(samples, seed=0)
    assert metrics["mismatch/mean_abs"] > 0.01


def test_what_was_pushed_is_what_samples(folder, mesh):
    """After updates and a push the engine has the learner's log-probabilities again, under a new version."""
    policy, learner = TorchPolicy(folder), make_learner(folder, mesh, actor={"learning_rate": 1e-2})
    first = samples_of(collect(policy, folder, {}))
    learner.train_on(first, seed=0)
    assert gap(scored(learner, samples_of(collect(policy, folder, {})))) > 0.01
    give(policy, learner.actor.lm, 7)
    assert policy.version == 7
    trajectories = collect(policy, folder, {})
    assert {span.version for t in trajectories for turn in t.turns for span in turn.version_spans} == {7}
    assert gap(scored(learner, samples_of(trajectories))) < 1e-4


def test_a_learning_rate_of_zero_leaves_the_policy_as_it_was(folder, mesh):
    policy = TorchPolicy(folder)
    still = {"learning_rate": 0.0, "weight_decay": 0.1}
    learner = make_learner(folder, mesh, actor=still)
    before = collect(policy, folder, {})
    for iteration in range(1, 4):
        learner.train_on(samples_of(before), seed=iteration)
        give(policy, learner.actor.lm, iteration)
    after = collect(policy, folder, {})
    assert [[(t.action_ids, t.behavior_logprobs) for t in episode.turns] for episode in after] == [
        [(t.action_ids, t.behavior_logprobs) for t in episode.turns] for episode in before
    ]


def test_an_exported_model_has_the_learners_logprobs_in_transformers_and_in_the_engine(folder, mesh, tmp_path):
    learner = make_learner(folder, mesh, actor={"learning_rate": 1e-2})
    samples = samples_of(collect(TorchPolicy(folder), folder, {}))
    learner.train_on(samples, seed=0)
    exported = export_model(tmp_path / "model", learner, AutoTokenizer.from_pretrained(folder))
    lm = AutoModelForCausalLM.from_pretrained(exported)
    batch = scored(learner, samples)
    for row, sample in enumerate(samples):
        with torch.no_grad():
            logprobs = lm(torch.tensor(sample.token_ids)[None]).logits[0].log_softmax(-1)
        for t in sample.action_mask.nonzero()[0]:
            want = batch.proximal_logprobs[row, t].item()
            assert logprobs[t - 1, sample.token_ids[t]].item() == pytest.approx(want, abs=1e-6)
    assert gap(scored(learner, samples_of(collect(TorchPolicy(exported), exported, {})))) < 1e-4
    ours, theirs = AutoTokenizer.from_pretrained(exported), AutoTokenizer.from_pretrained(folder)
    assert ours.get_vocab() == theirs.get_vocab() and ours.chat_template == theirs.chat_template
    assert not list(tmp_path.glob(".*"))  # no partial folder stays behind


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_buckets_hold_every_parameter_once_and_keep_to_their_size(folder):
    lm = AutoModelForCausalLM.from_pretrained(folder)
    assert lm.config.tie_word_embeddings
    buckets = list(weight_buckets(lm, max_bytes=20_000))
    names = [name for bucket in buckets for name, _ in bucket]
    assert names == [name for name, _ in lm.named_parameters()]
    assert "lm_head.weight" not in names and "model.embed_tokens.weight" in names
    sizes = [sum(tensor.numel() * tensor.element_size() for _, tensor in bucket) for bucket in buckets]
    assert len(buckets) > 2
    assert all(size <= 20_000 or len(bucket) == 1 for size, bucket in zip(sizes, buckets, strict=True))
    assert any(size > 20_000 for size in sizes)  # the embedding alone is larger


def test_the_policy_takes_weights_however_they_are_cut(folder):
    lm, policy = AutoModelForCausalLM.from_pretrained(folder), TorchPolicy(folder)
    changed = copy.deepcopy(lm)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.2)
    give(policy, changed, 1, max_bytes=1)

    async def one_token():
        session = policy.open_session(seed=0)
        completion = await policy.generate([5, 6], SamplingParams(max_new_tokens=1), session=session)
        policy.close_session(session)
        return completion

    completion = asyncio.run(one_token())
    with torch.no_grad():
        want = changed(torch.tensor([[5, 6]])).logits[0, -1].log_softmax(-1)[completion.token_ids[0]]
    assert completion.logprobs[0] == pytest.approx(want.item(), abs=1e-5)


def test_weights_of_another_model_are_refused_and_the_old_ones_stay(folder, tmp_path):
    policy = TorchPolicy(folder)
    wider = create_model(tmp_path, hidden_size=32, num_layers=3, num_heads=2, num_kv_heads=1)
    with pytest.raises(WeightSyncError, match=r"version 0 stays: unknown parameter 'model\.layers\.2"):
        give(policy, AutoModelForCausalLM.from_pretrained(wider), 1)
    assert policy.version == 0
    give(policy, AutoModelForCausalLM.from_pretrained(folder), 2)  # and the next update works
    assert policy.version == 2
