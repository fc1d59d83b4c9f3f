"""AdamW: schedule, clipping, and updates that are skipped."""

import math

import pytest
import torch
from torch import nn

from envgym.config import OptimizerConfig
from envgym.learner.optimizer import ScheduledAdamW, learning_rate


def rates(total, **settings):
    config = OptimizerConfig(learning_rate=8.0, **settings)
    return [learning_rate(config, update, total) for update in range(total)]


def test_schedules_written_out():
    assert rates(4) == [8, 8, 8, 8]
    assert rates(4, schedule="linear") == [8, 6, 4, 2]
    assert rates(4, schedule="cosine") == pytest.approx([8, 8 * 0.8535533905932737, 4, 8 * 0.14644660940672627])
    assert rates(4, warmup_updates=4) == [2, 4, 6, 8]
    assert rates(6, schedule="linear", warmup_updates=2) == [4, 8, 8, 6, 4, 2]


def test_past_its_end_a_schedule_stays_where_it_ended():
    for schedule in ("linear", "cosine"):
        config = OptimizerConfig(learning_rate=8.0, schedule=schedule)
        assert learning_rate(config, 5, 4) == pytest.approx(0.0, abs=1e-12)
    assert learning_rate(OptimizerConfig(learning_rate=8.0), 99, 4) == 8.0


def test_a_warm_up_longer_than_the_run_does_not_divide_by_zero():
    assert rates(2, schedule="cosine", warmup_updates=10) == pytest.approx([0.8, 1.6])


def make_optimizer(**settings):
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -2.0]]))
    return module, ScheduledAdamW(module, OptimizerConfig(learning_rate=0.1, **settings), total_updates=10)


def test_the_first_update_of_adam_written_out():
    module, optimizer = make_optimizer(max_grad_norm=100.0)
    module.weight.grad = torch.tensor([[3.0, -4.0]])
    assert optimizer.step() == pytest.approx(5.0)
    # Bias-corrected first moment over root of the second is the sign of the gradient.
    assert module.weight[0].tolist() == pytest.approx([0.9, -1.9], abs=1e-6)
    assert module.weight.grad is None
    assert optimizer.num_updates == 1


def test_the_norm_before_clipping_is_returned_and_the_gradient_clipped():
    module, optimizer = make_optimizer(max_grad_norm=0.5)
    module.weight.grad = torch.tensor([[3.0, -4.0]])
    assert optimizer.step() == pytest.approx(5.0)
    moment = optimizer.adam.state[module.weight]["exp_avg"]
    assert moment[0].tolist() == pytest.approx([0.1 * 0.3, 0.1 * -0.4], rel=1e-4)


def test_weight_decay_is_decoupled():
    module, optimizer = make_optimizer(weight_decay=0.5)
    module.weight.grad = torch.zeros(1, 2)
    optimizer.step()
    assert module.weight[0].tolist() == pytest.approx([0.95, -1.9])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_skipped_and_the_next_one_used(bad):
    module, optimizer = make_optimizer()
    module.weight.grad = torch.tensor([[bad, 1.0]])
    assert not math.isfinite(optimizer.step())
    assert module.weight[0].tolist() == [1.0, -2.0]
    assert not optimizer.adam.state
    module.weight.grad = torch.tensor([[1.0, 1.0]])
    optimizer.step()
    assert module.weight.isfinite().all() and module.weight[0, 0] < 1.0


def test_the_schedule_counts_updates():
    module, optimizer = make_optimizer(schedule="linear")
    for _ in range(3):
        module.weight.grad = torch.zeros(1, 2)
        optimizer.step()
    assert optimizer.adam.param_groups[0]["lr"] == pytest.approx(0.1 * 0.8)
