"""What an iteration reports, computed by hand from a scored batch."""

import dataclasses

import pytest
import torch
from tiny_learner import CPU, make_config, make_learner, make_samples, make_trajectory

from envgym.learner.batch import ENDINGS, collate, make_sample
from envgym.learner.metrics import MetricSums, batch_metrics, update_metrics


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


def make_batch(samples):
    batch = collate(samples, dtype=torch.float64, device=CPU)
    generator = torch.Generator().manual_seed(1)
    for name in ("values", "value_targets", "advantages", "proximal_logprobs"):
        noise = torch.randn(batch.action_mask.shape, generator=generator, dtype=torch.float64)
        # What stands outside the mask must not be counted.
        setattr(batch, name, noise if name != "advantages" else torch.where(batch.action_mask, noise, 0.0))
    batch.bootstrap_value = torch.where(batch.terminated, 0.0, 2.5).double()
    return batch


def explained(batch, chosen):
    targets, errors = batch.value_targets[chosen], (batch.value_targets - batch.values)[chosen]
    if len(targets) < 2:
        return 0.0  # nothing varies, so nothing is explained
    return (1 - errors.var(unbiased=False) / targets.var(unbiased=False)).item()


def test_batch_metrics_by_hand():
    batch = make_batch(make_samples())
    metrics, mask = batch_metrics(batch, CPU), batch.action_mask
    difference = (batch.proximal_logprobs - batch.behavior_logprobs)[mask]
    ratio = difference.exp()
    want = {
        "critic/explained_variance": explained(batch, mask),
        "critic/value_mean": batch.values[mask].mean().item(),
        "critic/target_mean": batch.value_targets[mask].mean().item(),
        "critic/bootstrap_mean": 2.5,  # over the truncated episodes only
        "policy/advantage_max": batch.advantages.abs().max().item(),
        "batch/action_tokens": float(mask.sum()),
        "batch/tokens": float(batch.lengths.sum()),
        "mismatch/mean_abs": difference.abs().mean().item(),
        "mismatch/max_abs": difference.abs().max().item(),
        "mismatch/max_ratio": ratio.max().item(),
        "mismatch/effective_sample_share": (ratio.sum() ** 2 / ratio.square().sum() / len(ratio)).item(),
    }
    for name, value in want.items():
        assert metrics[name] == pytest.approx(value, rel=1e-9), name


def test_explained_variance_is_told_apart_by_turn_and_by_ending():
    batch = make_batch(make_samples())
    metrics = batch_metrics(batch, CPU)
    for turn in range(4):
        want = explained(batch, batch.action_mask & (batch.turn_ids == turn))
        assert metrics[f"critic/explained_variance_turn_{turn}"] == pytest.approx(want)
    assert "critic/explained_variance_turn_4" not in metrics
    for ending in ("terminated", "max_turns", "response_length", "context_overflow"):
        rows = batch.endings == ENDINGS.index(ending)
        assert metrics[f"critic/explained_variance_{ending}"] == pytest.approx(
            explained(batch, batch.action_mask & rows[:, None])
        )
    assert "critic/explained_variance_token_budget" not in metrics


def test_late_turns_share_a_group():
    batch = make_batch([make_sample(make_trajectory(1, num_turns=10), 0)])
    metrics = batch_metrics(batch, CPU)
    late = explained(batch, batch.action_mask & (batch.turn_ids >= 7))
    assert metrics["critic/explained_variance_turn_7+"] == pytest.approx(late)
    assert "critic/explained_variance_turn_8" not in metrics


def test_a_batch_without_truncations_has_a_bootstrap_mean_of_zero():
    samples = [dataclasses.replace(s, terminated=True, ending="terminated") for s in make_samples()]
    assert batch_metrics(make_batch(samples), CPU)["critic/bootstrap_mean"] == 0.0


def test_sums_add_and_maxima_are_taken():
    sums = MetricSums(CPU)
    sums.add({"a_sum": 1.0, "b_max": 5.0})
    sums.add({"a_sum": torch.tensor(2.0, requires_grad=True), "b_max": 3.0})
    assert sums.reduce() == {"a_sum": 3.0, "b_max": 5.0}
    assert sums.totals() == {"a_sum": 3.0, "b_max": 5.0}


def test_update_metrics_are_means_over_tokens_not_means_of_means():
    sums = MetricSums(CPU)
    base = {"policy/clip_low_sum": 0.0, "policy/clip_high_sum": 0.0, "policy/ratio_max": 1.0, "policy/grad_norm": 4.0}
    base |= {"policy/loss": 1.0, "policy/own_sum": 2.0, "critic/loss": 1.0}
    sums.add(base | counts(1.0, squared_error=4.0, entropy=1.0))
    more = {"policy/clip_high_sum": 2.0, "policy/ratio_max": 7.0, "policy/grad_norm": 6.0}
    sums.add(base | counts(3.0, squared_error=0.0, entropy=0.0) | more)
    metrics = update_metrics(sums, 2)
    assert metrics["policy/entropy"] == 0.25
    assert metrics["critic/rmse"] == 1.0
    assert metrics["policy/clip_fraction"] == metrics["policy/clip_fraction_high"] == 0.5
    assert metrics["policy/clip_fraction_low"] == 0.0
    assert metrics["policy/ratio_max"] == 7.0
    assert metrics["policy/grad_norm"] == 5.0
    assert metrics["policy/loss"] == metrics["critic/loss"] == 1.0
    assert metrics["policy/own"] == 1.0  # a metric of a user's loss
    assert metrics["policy/updates"] == 2.0


def counts(tokens, *, squared_error, entropy):
    numbers = {"policy/num_tokens": tokens, "critic/num_tokens": tokens}
    return numbers | {"critic/squared_error_sum": squared_error, "policy/entropy_sum": entropy}


def test_the_metrics_of_an_iteration_have_no_gaps():
    metrics = make_learner(make_config()).train_on(make_samples(), seed=0)
    named = ("policy/loss", "policy/entropy", "policy/kl_proximal", "policy/grad_norm", "critic/loss", "critic/rmse")
    assert metrics.keys() >= set(named)
    assert all(isinstance(value, float) for value in metrics.values())
