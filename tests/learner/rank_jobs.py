"""What the tests run on one rank and on two, in processes of their own or in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_learner import CPU, EVERYTHING, VOCAB, make_config, make_learner, make_lm, make_samples, weights_of

from envgym.learner import model
from envgym.learner.batch import exchange_samples, plan_microbatches
from envgym.learner.checkpoint import load_checkpoint, save_checkpoint
from envgym.learner.distributed import full_tensor, shard
from envgym.learner.metrics import all_reduce_sum
from envgym.learner.model import Actor
from envgym.weights import weight_buckets

UNEVEN = "all but one on the second"
SPLITS = {
    "even": lambda index: index % 2,
    UNEVEN: lambda index: int(index != 2),
    "everything on the first": lambda index: 0,
}
"""Rank that collected a sample, on two ranks."""


def share(samples: list[Any], split: str) -> list[Any]:
    """What this rank has collected; everything when it is alone."""
    if dist.get_world_size() == 1:
        return samples
    return [sample for sample in samples if SPLITS[split](sample.index) == dist.get_rank()]


EARLY_STOP = {**EVERYTHING, "update": {"num_epochs": 4, "num_minibatches": 3, "target_kl": 0.02}}

FLOAT32 = {
    **EVERYTHING,
    "dtype": "float32",
    "update": {"num_epochs": 1, "num_minibatches": 1},
    "actor": {"learning_rate": 1e-4},
    "critic": {**EVERYTHING["critic"], "optimizer": {"learning_rate": 1e-4}},
}
"""A single small update, since Adam makes much of rounding where a gradient is next to zero."""


NO_CRITIC: dict[str, Any] = {"estimator": {"whiten": "none"}, "kl": {"beta": 0.05}}
"""For an estimator that is handed over and needs no critic."""


class MeanBaseline:
    """The return of a trajectory against the mean of all, on each of its action tokens."""

    needs_critic = False

    def __call__(self, batch: Any) -> tuple[torch.Tensor, None]:
        returns = batch.rewards.sum(dim=1)
        total, count = all_reduce_sum(torch.stack([returns.sum(), returns.new_tensor(float(len(returns)))]))
        return (returns - total / count)[:, None] * batch.action_mask, None


class PlainGradient:
    """The policy gradient without a ratio."""

    def __call__(self, inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = inputs.aggregate(-inputs.logprobs * inputs.advantages)
        return loss, {"negative_logprob_sum": -(inputs.logprobs * inputs.loss_mask).sum()}


SMALL = {**EVERYTHING, "update": {**EVERYTHING["update"], "max_microbatch_tokens": 25}}
MINIBATCH = {**EVERYTHING["estimator"], "whiten": "minibatch", "recompute_each_epoch": True}
RUNS: dict[str, dict[str, Any]] = {
    "even": {"sections": EVERYTHING},
    "uneven": {"sections": EVERYTHING, "split": UNEVEN},
    "one rank collected all": {"sections": EVERYTHING, "split": "everything on the first"},
    "an empty share": {"sections": EVERYTHING, "count": 4},
    "tiny micro-batches": {"sections": SMALL, "split": UNEVEN},
    "whitened minibatches": {"sections": {**EVERYTHING, "estimator": MINIBATCH}},
    "own loss and estimator": {
        "sections": NO_CRITIC,
        "split": UNEVEN,
        "loss": PlainGradient(),
        "estimator": MeanBaseline(),
    },
    "float32": {"sections": FLOAT32, "seeds": (5,)},
    "early stop": {"sections": EARLY_STOP, "split": UNEVEN},
}
"""Arguments of `train_twice`; the split means nothing to one rank alone."""


def train_twice(
    sections: dict[str, Any], split: str = "even", count: int = 7, seeds: tuple[int, ...] = (5, 6), **seams: Any
) -> dict[str, Any]:
    """Two iterations (or as many as there are seeds) from the same start; metrics and weights."""
    learner = make_learner(make_config(**sections), **seams)
    metrics = [learner.train_on(share(make_samples(count), split), seed=seed) for seed in seeds]
    return {
        "metrics": metrics,
        "actor": weights_of(learner.actor),
        "critic": {} if learner.critic is None else weights_of(learner.critic),
        "beta": None if learner.kl is None else learner.kl.beta,
    }


def train_with_tiny_chunks() -> dict[str, Any]:
    """Two tokens at a time through the vocabulary head."""
    whole, model.HEAD_CHUNK_ELEMENTS = model.HEAD_CHUNK_ELEMENTS, 2 * VOCAB
    try:
        return train_twice(EVERYTHING)
    finally:
        model.HEAD_CHUNK_ELEMENTS = whole


def imitate(split: str = "even") -> dict[str, Any]:
    learner = make_learner(make_config())
    losses = learner.imitate(
        share(make_samples(), split), learner.config.actor, epochs=2, updates=3, seed=1, on_update=lambda _: None
    )
    return {"losses": losses, "actor": weights_of(learner.actor)}


def skip_a_bad_update() -> dict[str, Any]:
    """One rank's gradient holds a NaN in its shard of one parameter."""
    learner = make_learner(make_config())
    before = weights_of(learner.actor)
    batch, _ = learner._distribute(share(make_samples(), "even"), 1, 0)
    learner.score(batch)
    for parameter in learner.actor.parameters():
        parameter.grad = torch.zeros_like(parameter)
    first = next(iter(learner.actor.parameters()))
    if dist.get_rank() == 0:
        first.grad.to_local()[0, 0] = float("nan")
    norm, updates = learner.actor_optimizer.step(), learner.actor_optimizer.num_updates
    return {"norm": norm, "before": before, "after": weights_of(learner.actor), "updates": updates}


def exchange() -> dict[str, Any]:
    """Sends samples to the other rank; the second rank has none of its own."""
    mine = make_samples(5) if dist.get_rank() == 0 else []
    to = [1, 0, 1, 1, 0][: len(mine)]
    arrived = exchange_samples(mine, to, device=CPU)
    groups = plan_microbatches(
        torch.tensor([s.length for s in arrived]),
        torch.arange(len(arrived)),
        max_tokens=20 if dist.get_rank() else 10**6,
    )
    return {"samples": arrived, "groups": groups}


def buckets() -> list[list[tuple[str, torch.Tensor]]]:
    lm = make_lm()
    shard(Actor(lm), lm.model.layers, make_mesh())
    return [[(name, tensor.clone()) for name, tensor in bucket] for bucket in weight_buckets(lm, max_bytes=30_000)]


def make_mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def save_then_train(folder: str, sections: dict[str, Any]) -> dict[str, Any]:
    """One iteration, a checkpoint, one more iteration."""
    learner = make_learner(make_config(**sections))
    learner.train_on(share(make_samples(), "even"), seed=5)
    save_checkpoint(Path(folder), learner, {"note": "kept"}, iteration=1, keep=2)
    saved = snapshot(learner)
    metrics = [learner.train_on(share(make_samples(), "even"), seed=6)]
    after = {"actor": weights_of(learner.actor), "critic": weights_of(learner.critic)}
    return {"saved": saved, "metrics": metrics, **after}


def load_then_train(path: str, sections: dict[str, Any]) -> dict[str, Any]:
    """A fresh learner with other weights, restored, then the second iteration."""
    config = make_config(**sections)
    learner = make_learner(config, make_lm(getattr(torch, config.dtype), seed=99))
    state = load_checkpoint(Path(path), learner)
    loaded = snapshot(learner)
    metrics = [learner.train_on(share(make_samples(), "even"), seed=6)]
    after = {"actor": weights_of(learner.actor), "critic": weights_of(learner.critic)}
    return {"state": state, "loaded": loaded, "metrics": metrics, **after}


def snapshot(learner: Any) -> dict[str, Any]:
    """Everything a checkpoint must bring back."""
    adam = {}
    for name, optimizer in (("actor", learner.actor_optimizer), ("critic", learner.critic_optimizer)):
        for place, parameter in enumerate(optimizer.module.parameters()):
            for key, value in optimizer.adam.state[parameter].items():
                adam[f"{name}.{place}.{key}"] = full_tensor(value).clone()
    return {
        "actor": weights_of(learner.actor),
        "critic": weights_of(learner.critic),
        "reference": None if learner.reference is None else weights_of(learner.reference),
        "adam": adam,
        "beta": None if learner.kl is None else learner.kl.beta,
        "updates": (learner.actor_optimizer.num_updates, learner.critic_optimizer.num_updates),
    }


def assert_same_run(got: dict[str, Any], want: dict[str, Any], *, rel: float) -> None:
    for ours, theirs in zip(got["metrics"], want["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=rel, abs=rel, nan_ok=True)
    assert_same_weights(got, want, rel=rel)


def assert_same_weights(got: dict[str, Any], want: dict[str, Any], *, rel: float) -> None:
    for module in want.keys() & {"actor", "critic"}:
        for name, weight in want[module].items():
            difference = (got[module][name] - weight).abs().max() / weight.abs().max()
            assert difference <= rel, f"{module} {name} differs by {difference:.2e}"


def assert_continues(loaded: dict[str, Any], saved: dict[str, Any], *, rel: float) -> None:
    assert loaded["state"]["note"] == "kept" and loaded["state"]["learner"]["iteration"] == 1
    assert loaded["loaded"]["beta"] == saved["saved"]["beta"] != 0.05
    assert loaded["loaded"]["updates"] == saved["saved"]["updates"] == (6, 6)
    for part in ("actor", "critic", "reference", "adam"):
        assert loaded["loaded"][part].keys() == saved["saved"][part].keys() != set()
        for name, tensor in saved["saved"][part].items():
            assert torch.equal(loaded["loaded"][part][name], tensor), f"{part} {name}"
    assert_same_run(loaded, saved, rel=rel)


def everything_on_two_ranks(folder: str, checkpoint_of_one: str) -> dict[str, Any]:
    """All two-rank jobs in one world, since starting processes is what takes long."""
    return {
        **{name: train_twice(**arguments) for name, arguments in RUNS.items()},
        "tiny chunks": train_with_tiny_chunks(),
        "imitation": imitate(UNEVEN),
        "bad update": skip_a_bad_update(),
        "exchange": exchange(),
        "buckets": buckets(),
        "saved": save_then_train(folder, EVERYTHING),
        "loaded from one": load_then_train(checkpoint_of_one, EVERYTHING),
    }
