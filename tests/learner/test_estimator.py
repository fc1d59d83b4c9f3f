"""The seams of the learner: an estimator that needs no critic, a loss of a user's own."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from rank_jobs import NO_CRITIC, MeanBaseline, PlainGradient
from tiny_learner import CPU, EVERYTHING, make_config, make_learner, make_samples, weights_of

from envgym.config import CustomEstimatorConfig, CustomLossConfig, GAEEstimatorConfig
from envgym.learner.batch import collate
from envgym.learner.checkpoint import load_checkpoint, save_checkpoint
from envgym.learner.estimator import GAEEstimator
from envgym.learner.gae import decoupled_gae, length_adaptive_lambda, turn_steps


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


def test_gae_reads_discount_and_lambdas_from_its_section():
    learner = make_learner(make_config(estimator={"gamma": 0.9, "gae_length_alpha": 0.5, "whiten": "none"}))
    batch = collate(make_samples(), dtype=torch.float64, device=CPU)
    learner.score(batch)
    learner.estimate(batch)
    lam = length_adaptive_lambda(batch.action_mask.sum(dim=1), alpha=0.5, lambda_min=0.0)
    whole = (batch.rewards, batch.values, batch.action_mask, batch.bootstrap_value)
    cut = torch.tensor([sample.ending in ("response_length", "context_overflow") for sample in make_samples()])
    discount = 0.9 ** turn_steps(batch.turn_ids, batch.action_mask, mid_turn_cut=cut).double()
    advantages, targets = decoupled_gae(*whole, discount=discount, lam_policy=lam, lam_value=1.0)
    assert torch.equal(batch.advantages, advantages) and torch.equal(batch.value_targets, targets)


@pytest.mark.parametrize("per", ["turn", "token"])
def test_the_discount_acts_where_the_section_says(per):
    learner = make_learner(make_config())
    learner.estimator = GAEEstimator(GAEEstimatorConfig(gamma=0.5, discount_per=per, gae_lambda_policy=1.0))
    sample = make_samples()[3]  # several turns of several tokens, terminated
    batch = collate([sample], dtype=torch.float64, device=CPU)
    learner.config = make_config(estimator={"whiten": "none"})
    learner.estimate(batch)
    tokens = [int(t) for t in batch.action_mask[0].nonzero()]
    total, weight = 0.0, 1.0
    for t in tokens:
        total += weight * batch.rewards[0, t].item()
        weight *= 0.5 ** (batch.turn_steps[0, t].item() if per == "turn" else 1)
    assert batch.advantages[0, tokens[0]].item() == pytest.approx(total, abs=1e-12)


def test_a_learner_whose_estimator_needs_no_critic_holds_none(tmp_path):
    seen = []

    class Watching(MeanBaseline):
        def __call__(self, batch):
            seen.append(batch)
            return super().__call__(batch)

    learner = make_learner(make_config(**NO_CRITIC), estimator=Watching())
    learner.start_from_policy()
    metrics = learner.train_on(make_samples(), seed=1)
    assert learner.critic is None and learner.critic_optimizer is None
    assert list(learner.modules) == ["actor", "reference"] and list(learner.optimizers) == ["actor"]
    assert seen[0].values is None and seen[0].bootstrap_value is None
    assert not [name for name in metrics if name.startswith("critic/")]
    assert metrics["policy/grad_norm"] > 0 and "mismatch/mean_abs" in metrics
    learner.move_to(CPU)
    path = save_checkpoint(tmp_path, learner, {}, iteration=1, keep=1)
    expected = learner.train_on(make_samples(), seed=2)
    other = make_learner(make_config(**NO_CRITIC), estimator=MeanBaseline())
    load_checkpoint(path, other)
    assert other.train_on(make_samples(), seed=2) == expected


def test_advantages_of_a_batch_mean_are_those_of_the_returns():
    learner = make_learner(make_config(**NO_CRITIC), estimator=MeanBaseline())
    batch = collate(make_samples(), dtype=torch.float64, device=CPU)
    learner.estimate(batch)
    returns = torch.tensor([sample.rewards.sum() for sample in make_samples()])
    want = (returns - returns.mean())[:, None] * batch.action_mask
    torch.testing.assert_close(batch.advantages, want)


def test_an_estimator_is_told_the_groups():
    trained = []

    class OwnGroups(MeanBaseline):
        def __call__(self, batch):
            trained.append(batch.groups.tolist())
            return super().__call__(batch)

    samples = [dataclasses.replace(sample, group=sample.index // 2) for sample in make_samples(6)]
    make_learner(make_config(**NO_CRITIC), estimator=OwnGroups()).train_on(samples, seed=0)
    assert trained == [[0, 0, 1, 1, 2, 2]]


def test_an_advantage_that_is_not_finite_is_a_bug_of_the_estimator():
    class Broken(MeanBaseline):
        def __call__(self, batch):
            return torch.full_like(batch.rewards, float("nan")), None

    with pytest.raises(AssertionError, match="not finite"):
        make_learner(make_config(**NO_CRITIC), estimator=Broken()).train_on(make_samples(), seed=0)


def test_value_pretraining_without_a_critic_is_refused_by_the_configuration():
    with pytest.raises(ValueError, match=r"critic\.pretraining needs a critic"):
        make_config(estimator={"kind": "custom", "name": "m:C", "needs_critic": False}, critic={"pretraining": {}})


def test_a_loss_of_ones_own_is_run_logged_and_exact_under_micro_batches():
    runs = {}
    for tokens in (1, 40, 16_384):
        config = make_config(**{**EVERYTHING, "update": {**EVERYTHING["update"], "max_microbatch_tokens": tokens}})
        learner = make_learner(config, loss=PlainGradient())
        runs[tokens] = learner.train_on(make_samples(), seed=1), weights_of(learner.actor)
    whole, weights = runs.pop(16_384)
    assert whole["policy/negative_logprob"] > 0 and "policy/clip_fraction" not in whole
    assert whole["policy/ratio_max"] > 1.0 and whole["policy/kl_proximal"] > 0  # the learner's own, whatever the loss
    for metrics, others in runs.values():
        assert metrics == pytest.approx(whole, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(others, weights, rtol=1e-9, atol=1e-10)


def test_aggregate_of_the_inputs_applies_the_importance_weights():
    sections = {"estimator": {"whiten": "none"}, "update": {"num_epochs": 1, "num_minibatches": 1}}
    losses = {}
    for importance in ("none", "tis"):
        config = make_config(**sections, loss={"importance": importance})
        losses[importance] = make_learner(config, loss=PlainGradient()).train_on(make_samples(), seed=1)["policy/loss"]
    assert losses["none"] != pytest.approx(losses["tis"], rel=1e-3)


def test_what_only_a_script_has_is_named_when_it_is_missing():
    custom = {
        "estimator": CustomEstimatorConfig(name="train.py:MeanBaseline", needs_critic=False).model_dump(),
        "loss": CustomLossConfig(name="train.py:PlainGradient").model_dump(),
    }
    learner = make_learner(make_config(**custom))
    assert learner.critic is None
    with pytest.raises(ValueError, match=r"'train\.py:MeanBaseline', which its script hands to train"):
        learner.train_on(make_samples(), seed=0)
