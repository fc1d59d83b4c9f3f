"""Training state that leaves its device and comes back."""

import pytest
import torch
from tiny_learner import CPU, EVERYTHING, make_config, make_learner, make_samples, weights_of


@pytest.fixture(autouse=True)
def _world(one_rank):
    pass


def state_tensors(learner):
    modules = (learner.actor, learner.critic, learner.reference)
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()
    for optimizer in (learner.actor_optimizer, learner.critic_optimizer):
        for state in optimizer.adam.state.values():
            yield from (value for name, value in state.items() if name != "step")


def test_nothing_of_the_training_state_stays_on_the_device():
    learner = make_learner(make_config(**EVERYTHING))
    learner.train_on(make_samples(), seed=0)
    tensors = list(state_tensors(learner))
    assert len(tensors) > 100 and all(tensor.device == CPU for tensor in tensors)
    learner.move_to(torch.device("meta"))  # a device that is not the CPU, wherever the tests run
    assert all(tensor.device.type == "meta" for tensor in state_tensors(learner))


def test_training_goes_on_as_if_the_state_had_never_left():
    stayed, left = (make_learner(make_config(**EVERYTHING)) for _ in range(2))
    for iteration in range(2):
        expected = stayed.train_on(make_samples(), seed=iteration)
        held = list(left.actor.parameters())
        left.move_to(torch.device("cpu"))
        left.move_to(left.device)
        assert all(a is b for a, b in zip(held, left.actor.parameters(), strict=True)), "the optimizer holds others"
        assert left.train_on(make_samples(), seed=iteration) == pytest.approx(expected, nan_ok=True)
    torch.testing.assert_close(weights_of(left.actor), weights_of(stayed.actor), rtol=0, atol=0)
