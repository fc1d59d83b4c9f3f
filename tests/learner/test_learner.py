"""What a learner computes on one rank: scores against transformers, micro-batches, padding, and each setting."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from rank_jobs import train_twice
from tiny_learner import (
    CPU,
    EVERYTHING,
    VOCAB,
    make_config,
    make_learner,
    make_lm,
    make_samples,
    make_trajectory,
    weights_of,
)

from envgym.learner import learner as learner_module
from envgym.learner.batch import Batch, collate, make_sample
from envgym.learner.gae import gae_advantages

ONE_STEP = {"gamma": 0.5, "gae_lambda_policy": 0.0, "whiten": "none"}
AGGREGATIONS = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


def with_settings(**changes):
    return {**EVERYTHING, **{name: {**EVERYTHING.get(name, {}), **section} for name, section in changes.items()}}


def scored(sections, samples=None) -> tuple[learner_module.Learner, Batch]:
    learner = make_learner(make_config(**sections))
    batch = collate(make_samples() if samples is None else samples, dtype=learner.dtype, device=CPU)
    learner.score(batch)
    return learner, batch


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_size_of_micro_batches_changes_nothing(aggregation):
    whole = train_twice(with_settings(loss={"aggregation": aggregation}))
    for tokens in (1, 40):
        split = train_twice(with_settings(loss={"aggregation": aggregation}, update={"max_microbatch_tokens": tokens}))
        for ours, theirs in zip(split["metrics"], whole["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9, nan_ok=True)
        for module in ("actor", "critic"):
            torch.testing.assert_close(split[module], whole[module], rtol=1e-9, atol=1e-9)


def test_the_aggregations_differ_so_the_test_above_can_fail():
    losses = {a: train_twice(with_settings(loss={"aggregation": a}), seeds=(5,))["metrics"][0] for a in AGGREGATIONS}
    assert len({round(m["critic/loss"], 12) for m in losses.values()}) == 4


def test_the_order_in_which_samples_come_changes_nothing():
    forwards, backwards = make_learner(make_config(**EVERYTHING)), make_learner(make_config(**EVERYTHING))
    a = forwards.train_on(make_samples(), seed=3)
    b = backwards.train_on(make_samples()[::-1], seed=3)
    assert a == b
    assert not changed(weights_of(forwards.actor), weights_of(backwards.actor))


def test_another_seed_makes_other_minibatches():
    a = make_learner(make_config(**EVERYTHING)).train_on(make_samples(), seed=3)
    b = make_learner(make_config(**EVERYTHING)).train_on(make_samples(), seed=4)
    assert a["policy/loss"] != b["policy/loss"]


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_are_the_critic_one_position_earlier_and_only_truncated_episodes_bootstrap_from_their_last():
    learner, batch = scored({})
    trunk, head = make_lm().model, weights_of(learner.critic)["head.weight"][0]
    for row, sample in enumerate(make_samples()):
        with torch.no_grad():
            after_each = trunk(torch.tensor(sample.token_ids)[None]).last_hidden_state[0] @ head
        want = after_each[: sample.length - 1]
        torch.testing.assert_close(batch.values[row, 1 : sample.length], want, rtol=0, atol=1e-9)
        assert after_each[-1].abs() > 1e-6
        bootstrap = 0.0 if sample.terminated else after_each[-1].item()
        assert batch.bootstrap_value[row].item() == pytest.approx(bootstrap, abs=1e-9)
        assert not (sample.terminated and batch.bootstrap_value[row])
    assert batch.values[batch.action_mask].abs().min() > 1e-6
    assert 0 < sum(sample.terminated for sample in make_samples()) < batch.size


@pytest.mark.parametrize(
    ("ending", "discount"), [("response_length", 1.0), ("context", 1.0), ("max_turns", 0.5), ("context_overflow", 0.5)]
)
def test_a_cut_bootstraps_undiscounted_in_mid_generation_and_discounted_after_an_executed_turn(ending, discount):
    learner, batch = scored({"estimator": ONE_STEP}, [make_sample(make_trajectory(3, ending=ending, num_turns=2), 0)])
    learner.estimate(batch)
    last = batch.action_mask[0].nonzero()[-1, 0]
    if discount == 1.0:  # the last token of the stream is a sampled one, of a turn without a reward
        assert last == batch.lengths[0] - 1 and batch.rewards[0, last] == 0
    # lambda = 0: r + discount * V' - V
    want = batch.rewards[0, last] + discount * batch.bootstrap_value[0] - batch.values[0, last]
    assert batch.advantages[0, last].item() == pytest.approx(want.item(), abs=1e-12)
    assert batch.bootstrap_value[0].abs() > 1e-6


def test_the_same_stream_terminated_and_truncated_differs_by_the_bootstrap_alone():
    truncated = make_sample(make_trajectory(3, ending="max_turns"), 0)
    ended = dataclasses.replace(truncated, terminated=True, ending="terminated", index=1)
    learner, batch = scored({"estimator": {"whiten": "none", "gae_lambda_policy": 1.0}}, [truncated, ended])
    learner.estimate(batch)
    gap = (batch.advantages[0] - batch.advantages[1])[batch.action_mask[0]]
    torch.testing.assert_close(gap, batch.bootstrap_value[0].expand_as(gap), rtol=0, atol=1e-12)


def test_the_kl_penalty_is_taken_off_action_tokens_and_nowhere_else():
    learner, batch = scored({"kl": {"beta": 0.5, "estimator": "k1"}})
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.mul_(1.1)
    learner.score(batch)
    shaped, metrics = learner._shape_rewards(batch)
    drift = batch.proximal_logprobs - batch.ref_logprobs
    assert drift[batch.action_mask].abs().min() > 0
    torch.testing.assert_close(shaped[batch.action_mask], (batch.rewards - 0.5 * drift)[batch.action_mask])
    assert (shaped[~batch.action_mask] == 0).all()
    assert metrics["policy/kl_reference"] == pytest.approx(drift[batch.action_mask].mean().item())
    assert metrics["policy/kl_beta"] == 0.5


# -- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_proximal_logprobs_are_those_of_transformers_at_the_sampling_temperature(temperature):
    _learner, batch = scored({"rollout": {"episodes_per_iteration": 8, "temperature": temperature}})
    lm = make_lm()
    for row, sample in enumerate(make_samples()):
        with torch.no_grad():
            logprobs = (lm(torch.tensor(sample.token_ids)[None]).logits[0] / temperature).log_softmax(-1)
        for t in np.flatnonzero(sample.action_mask):
            want = logprobs[t - 1, sample.token_ids[t]].item()
            assert batch.proximal_logprobs[row, t].item() == pytest.approx(want, abs=1e-6)
    assert (batch.proximal_logprobs[~batch.action_mask] == 0).all()


def test_reference_logprobs_stay_those_of_the_start_while_the_policy_moves():
    learner, first = scored(EVERYTHING)
    learner.train_on(make_samples(), seed=1)
    again = collate(make_samples(), dtype=learner.dtype, device=CPU)
    learner.score(again)
    torch.testing.assert_close(again.ref_logprobs, first.proximal_logprobs, rtol=0, atol=1e-12)
    assert (again.proximal_logprobs - first.proximal_logprobs).abs().max() > 1e-3


def test_what_the_padding_holds_changes_nothing(monkeypatch):
    clean = train_twice(EVERYTHING)

    def soiled(*args, **kwargs):
        batch = collate(*args, **kwargs)
        padding = torch.arange(batch.token_ids.shape[1])[None] >= batch.lengths[:, None]
        assert padding.any()
        garbage = torch.randint(VOCAB, batch.token_ids.shape, generator=torch.Generator().manual_seed(1))
        junk = {"token_ids": garbage, "behavior_logprobs": 77.0, "turn_ids": 7, "turn_steps": 7}
        for name, value in junk.items():
            setattr(batch, name, torch.where(padding, value, getattr(batch, name)))
        return batch

    monkeypatch.setattr(learner_module, "collate", soiled)
    dirty = train_twice(EVERYTHING)
    for ours, theirs in zip(dirty["metrics"], clean["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True)
    torch.testing.assert_close(dirty["actor"], clean["actor"], rtol=1e-9, atol=1e-10)


# -- updates ---------------------------------------------------------------------------------------------------------


def test_the_ratio_of_the_first_minibatch_is_one():
    metrics = make_learner(make_config(**EVERYTHING)).train_on(make_samples(), seed=1)
    assert metrics["policy/first_ratio_max"] == pytest.approx(1.0, abs=1e-9)
    assert metrics["policy/ratio_max"] > 1.01  # later ones have moved


def test_a_learning_rate_of_zero_changes_neither_weights_nor_logprobs():
    still = {"learning_rate": 0.0, "weight_decay": 0.0}
    learner, batch = scored(with_settings(actor=still, critic={"optimizer": still}))
    before = {**weights_of(learner.actor), **weights_of(learner.critic)}
    for seed in range(3):
        metrics = learner.train_on(make_samples(), seed=seed)
        assert metrics["policy/ratio_max"] == pytest.approx(1.0, abs=1e-12)
        assert metrics["policy/grad_norm"] > 0
    assert not changed(before, {**weights_of(learner.actor), **weights_of(learner.critic)})
    again = collate(make_samples(), dtype=learner.dtype, device=CPU)
    learner.score(again)
    assert torch.equal(again.proximal_logprobs, batch.proximal_logprobs)


@pytest.mark.parametrize("terms", [False, True], ids=["plain", "temperature, entropy bonus, importance weights"])
def test_the_first_update_has_the_gradients_of_the_losses_written_out_by_hand(terms):
    temperature, entropy_coefficient, cap = (0.7, 0.3, 1.5) if terms else (1.0, 0.0, math.inf)
    sections = {"estimator": {"whiten": "none"}, "rollout": {"episodes_per_iteration": 8, "temperature": temperature}}
    if terms:
        sections["loss"] = {"entropy_coefficient": 0.3, "importance": "tis", "importance_cap": 1.5}
    metrics = make_learner(make_config(**sections)).train_on(make_samples(), seed=1)
    _, batch = scored(sections)
    rewards_and_values = (batch.rewards, batch.values, batch.action_mask, batch.bootstrap_value)
    advantages = gae_advantages(*rewards_and_values, discount=1.0, lam=0.95)
    targets = gae_advantages(*rewards_and_values, discount=1.0, lam=1.0) + batch.values
    lm, trunk, count = make_lm(), make_lm().model, int(batch.action_mask.sum())
    head = weights_of(make_learner(make_config(**sections)).critic)["head.weight"][0].requires_grad_()
    policy, entropy, value, capped = 0.0, 0.0, 0.0, 0
    for row, sample in enumerate(make_samples()):
        ids = torch.tensor(sample.token_ids)[None]
        distribution = (lm(ids).logits[0] / temperature).log_softmax(-1)
        values = trunk(ids).last_hidden_state[0] @ head
        for t in np.flatnonzero(sample.action_mask):
            logprob = distribution[t - 1, sample.token_ids[t]]
            ratio = math.exp(logprob.item() - sample.behavior_logprobs[t])
            capped += ratio > cap
            weight = min(ratio, cap) if terms else 1.0
            # On-policy the ratio is 1, so its gradient is that of the log-probability.
            policy = policy - weight * advantages[row, t] * (logprob - logprob.detach()).exp() / count
            entropy = entropy - (distribution[t - 1].exp() * distribution[t - 1]).sum() / count
            value = value + 0.5 * (values[t - 1] - targets[row, t]) ** 2 / count
    assert (0 < capped < count) == terms
    (policy - entropy_coefficient * entropy).backward()
    value.backward()
    assert metrics["policy/loss"] == pytest.approx(policy.item(), abs=1e-12)
    assert metrics["policy/entropy"] == pytest.approx(entropy.item(), rel=1e-9)
    assert metrics["critic/loss"] == pytest.approx(value.item(), rel=1e-9)
    assert metrics["policy/grad_norm"] == pytest.approx(norm_of([p.grad for p in lm.parameters()]), rel=1e-9)
    assert metrics["critic/grad_norm"] == pytest.approx(
        norm_of([p.grad for p in trunk.parameters()] + [head.grad]), rel=1e-9
    )


def norm_of(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()


def test_imitation_lowers_the_loss_of_what_it_imitates_and_leaves_the_critic_alone():
    learner = make_learner(make_config(actor={"learning_rate": 1e-2}))
    critic = weights_of(learner.critic)
    losses = learner.imitate(make_samples(), learner.config.actor, epochs=12, updates=1, seed=0)
    assert losses[-1] < 0.7 * losses[0]
    assert not changed(critic, weights_of(learner.critic))
    lm, expected = make_lm(), []
    for sample in make_samples():
        with torch.no_grad():
            logprobs = lm(torch.tensor(sample.token_ids)[None]).logits[0].log_softmax(-1)
        expected += [-logprobs[t - 1, sample.token_ids[t]].item() for t in np.flatnonzero(sample.action_mask)]
    assert losses[0] == pytest.approx(sum(expected) / len(expected), rel=1e-9)


def test_starting_from_the_policy_copies_the_trunk_and_resets_the_head():
    learner = make_learner(make_config(**with_settings(critic={"head_init": "zero"})))
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.mul_(1.3)
        for parameter in learner.critic.parameters():
            parameter.mul_(0.5)
    learner.start_from_policy()
    policy, critic = weights_of(learner.actor), weights_of(learner.critic)
    for name, weight in critic.items():
        if name.startswith("trunk."):
            assert torch.equal(weight, policy[name.replace("trunk.", "lm.model.")]), name
    assert (critic["head.weight"] == 0).all()
    assert not changed(weights_of(learner.reference), policy)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_value_pretraining_moves_the_critic_and_leaves_the_policy_alone():
    learner = make_learner(make_config(update={"num_epochs": 4, "num_minibatches": 1}))
    actor, critic = weights_of(learner.actor), weights_of(learner.critic)
    metrics = [learner.train_on(make_samples(), seed=seed, update_actor=False) for seed in range(8)]
    assert not changed(actor, weights_of(learner.actor))
    assert changed(critic, weights_of(learner.critic))
    assert metrics[-1]["critic/rmse"] < 0.8 * metrics[0]["critic/rmse"]
    assert learner.actor_optimizer.num_updates == 0
    assert not any("policy/loss" in each for each in metrics)


@pytest.mark.parametrize(("target", "updates"), [(1e-6, 2), (1e6, 6)])
def test_a_target_kl_stops_the_passes_and_a_generous_one_does_not(target, updates):
    update = {"num_epochs": 3, "num_minibatches": 2, "target_kl": target}
    metrics = make_learner(make_config(update=update, actor={"learning_rate": 0.05})).train_on(make_samples(), seed=0)
    # The first minibatch is on-policy, its KL is 0; the second sees the first update.
    assert metrics["policy/updates"] == updates and metrics["policy/early_stop"] == float(updates == 2)


def test_recomputed_advantages_use_the_updated_critic():
    losses = {}
    for recompute in (False, True):
        config = make_config(
            update={"num_epochs": 2, "num_minibatches": 1},
            estimator={"recompute_each_epoch": recompute, "gae_lambda_value": 0.5},
            critic={"optimizer": {"learning_rate": 0.05}, "head_init": "orthogonal"},
        )
        losses[recompute] = make_learner(config).train_on(make_samples(), seed=0)["policy/loss"]
    assert losses[True] != pytest.approx(losses[False], rel=1e-6)


@pytest.mark.parametrize("scope", ["batch", "minibatch", "none"])
def test_whitening_acts_on_its_scope(scope):
    learner, batch = scored({"estimator": {"whiten": scope}})
    learner.estimate(batch)
    rows = torch.tensor([0, 2, 5])
    whole = batch.advantages[batch.loss_mask]
    if scope == "batch":
        assert whole.mean().item() == pytest.approx(0, abs=1e-9)
        assert whole.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    else:
        assert abs(whole.mean().item()) > 1e-3
    part = learner._whitened(batch, rows)[rows][batch.loss_mask[rows]]
    assert part.mean().item() == pytest.approx(0, abs=1e-9)
    untouched = [row for row in range(batch.size) if row not in rows.tolist()]
    assert torch.equal(learner._whitened(batch, rows)[untouched], batch.advantages[untouched])


def test_an_adaptive_beta_moves_towards_its_target():
    learner = make_learner(make_config(**EVERYTHING))
    before = learner.kl.beta
    learner.train_on(make_samples(), seed=0)  # the policy still equals the reference: KL 0 is below the target
    assert learner.kl.beta < before


def test_bfloat16_keeps_float32_weights_and_computes_close_to_float32():
    scores = {}
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(make_config(dtype=dtype), make_lm(torch.float32))
        batch = collate(make_samples(), dtype=torch.float32, device=CPU)
        learner.score(batch)
        learner.train_on(make_samples(), seed=0)
        assert {weight.dtype for weight in weights_of(learner.actor).values()} == {torch.float32}
        scores[dtype] = batch.proximal_logprobs
    difference = (scores["bfloat16"] - scores["float32"]).abs().max().item()
    assert 0 < difference < 0.3
