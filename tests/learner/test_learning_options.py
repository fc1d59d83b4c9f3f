"""What each setting of the learner changes, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from tiny_learner import EVERYTHING, make_config, make_learner, make_samples, weights_of

from envgym.learner.advantages import estimate_advantages
from envgym.learner.batch import collate


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_value_pretraining_moves_the_critic_and_leaves_the_policy_alone(one_rank):
    learner = make_learner(make_config(update={"num_epochs": 4, "num_minibatches": 1}))
    actor, critic = weights_of(learner.actor), weights_of(learner.critic)
    fits = []
    for seed in range(8):
        metrics = learner.train_on(make_samples(), seed=seed, update_actor=False)
        fits.append(metrics["critic/rmse"])
    assert not changed(actor, weights_of(learner.actor))
    assert changed(critic, weights_of(learner.critic))
    assert fits[-1] < 0.8 * fits[0]
    assert learner.actor_optimizer.num_updates == 0
    assert "policy/loss" not in metrics


def test_a_target_kl_stops_the_passes_and_a_generous_one_does_not(one_rank):
    update = {"num_epochs": 3, "num_minibatches": 2}
    fast = {"learning_rate": 0.05}
    strict = make_learner(make_config(update={**update, "target_kl": 1e-6}, actor=fast))
    metrics = strict.train_on(make_samples(), seed=0)
    # The first minibatch is on-policy, its KL is 0; the second sees the first update.
    assert metrics["policy/updates"] == 2 and metrics["policy/early_stop"] == 1.0
    generous = make_learner(make_config(update={**update, "target_kl": 1e6}, actor=fast))
    metrics = generous.train_on(make_samples(), seed=0)
    assert metrics["policy/updates"] == 6 and metrics["policy/early_stop"] == 0.0


def test_recomputed_advantages_use_the_updated_critic(one_rank):
    losses = {}
    for recompute in (False, True):
        config = make_config(
            update={"num_epochs": 2, "num_minibatches": 1},
            advantages={"recompute_each_epoch": recompute, "gae_lambda_value": 0.5},
            critic={"optimizer": {"learning_rate": 0.05}, "head_init": "orthogonal"},
        )
        learner = make_learner(config)
        losses[recompute] = learner.train_on(make_samples(), seed=0)["policy/loss"]
    assert losses[True] != pytest.approx(losses[False], rel=1e-6)


@pytest.mark.parametrize("scope", ["batch", "minibatch", "none"])
def test_whitening_acts_on_its_scope(one_rank, scope):
    learner = make_learner(make_config(advantages={"whiten": scope}))
    batch = collate(make_samples(), dtype=torch.float64, device=torch.device("cpu"))
    learner.score(batch)
    estimate_advantages(batch, learner.config.advantages, rewards=batch.rewards)
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


def test_the_per_turn_discount_bootstraps_a_truncation_by_gamma_and_a_mid_turn_cut_by_one(one_rank):
    from tiny_learner import make_trajectory

    from envgym.learner.batch import make_sample

    config = make_config(advantages={"gamma": 0.5, "gae_lambda_value": 0.0, "whiten": "none"})
    learner = make_learner(config)
    endings = ("max_turns", "response_length", "terminated")
    samples = [make_sample(make_trajectory(7 + i, ending=ending), i) for i, ending in enumerate(endings)]
    batch = collate(samples, dtype=torch.float64, device=torch.device("cpu"))
    learner.score(batch)
    estimate_advantages(batch, config.advantages, rewards=batch.rewards)
    last = [int(row.nonzero().max()) for row in batch.action_mask]
    # With lambda 0 the target of the last action token is its reward plus the discounted bootstrap value.
    rewards = [batch.rewards[i, last[i]].item() for i in range(3)]
    values = batch.bootstrap_value.tolist()
    targets = [batch.value_targets[i, last[i]].item() for i in range(3)]
    assert values[0] != 0 and values[1] != 0 and values[2] == 0
    assert targets[0] == pytest.approx(rewards[0] + 0.5 * values[0], abs=1e-12)
    assert targets[1] == pytest.approx(rewards[1] + 1.0 * values[1], abs=1e-12)
    assert targets[2] == pytest.approx(rewards[2], abs=1e-12)


def test_the_kl_penalty_comes_off_the_reward_of_action_tokens_only(one_rank):
    learner = make_learner(make_config(kl={"beta": 0.1, "estimator": "k1"}))
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.mul_(1.1)
    batch = collate(make_samples(), dtype=torch.float64, device=torch.device("cpu"))
    learner.score(batch)
    shaped, metrics = learner._shape_rewards(batch)
    expected = batch.rewards - 0.1 * (batch.proximal_logprobs - batch.ref_logprobs)
    assert torch.allclose(shaped[batch.action_mask], expected[batch.action_mask], atol=1e-12)
    assert torch.equal(shaped[~batch.action_mask], torch.zeros_like(shaped[~batch.action_mask]))
    assert metrics["policy/kl_reference"] != 0


def test_an_adaptive_beta_moves_towards_its_target(one_rank):
    learner = make_learner(make_config(**EVERYTHING))
    before = learner.kl.beta
    learner.train_on(make_samples(), seed=0)  # the policy still equals the reference: KL 0 is below the target
    assert learner.kl.beta < before


def test_imitation_lowers_the_loss_of_what_is_imitated(one_rank):
    learner = make_learner(make_config())
    losses = learner.imitate(make_samples(), learner.config.actor, epochs=20, updates=2, seed=0)
    assert len(losses) == 40
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_a_start_from_the_policy_copies_trunk_and_reference_and_resets_the_head(one_rank):
    config = make_config(kl={"beta": 0.1}, critic={"optimizer": {"learning_rate": 1e-3}, "head_init": "zero"})
    learner = make_learner(config)
    learner.imitate(make_samples(), config.actor, epochs=1, updates=2, seed=0)
    learner.start_from_policy()
    actor, reference = weights_of(learner.actor), weights_of(learner.reference)
    critic = weights_of(learner.critic)
    assert not changed(actor, reference)
    for name, weight in critic.items():
        if name.startswith("trunk."):
            assert torch.equal(weight, actor[f"lm.model.{name.removeprefix('trunk.')}"])
    assert not critic["head.weight"].any()


def test_bfloat16_keeps_float32_weights_and_computes_close_to_float32(one_rank):
    scores = {}
    for dtype in ("float32", "bfloat16"):
        from tiny_learner import make_lm

        learner = make_learner(make_config(dtype=dtype), make_lm(torch.float32))
        batch = collate(make_samples(), dtype=torch.float32, device=torch.device("cpu"))
        learner.score(batch)
        learner.train_on(make_samples(), seed=0)
        assert {weight.dtype for weight in weights_of(learner.actor).values()} == {torch.float32}
        scores[dtype] = batch.proximal_logprobs
    difference = (scores["bfloat16"] - scores["float32"]).abs().max().item()
    assert 0 < difference < 0.3
