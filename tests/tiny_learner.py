"""A model, a configuration and a batch small enough to reason about, for tests of the learner on one or more ranks."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen3Config, Qwen3ForCausalLM

from envgym.config import TrainConfig
from envgym.learner.batch import Sample, make_sample
from envgym.learner.distributed import full_tensor
from envgym.learner.learner import Learner
from envgym.types import Trajectory, TruncationReason, Turn

VOCAB, CONTEXT = 53, 96
CPU = torch.device("cpu")


def make_lm(dtype: torch.dtype = torch.float64, seed: int = 0) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).to(dtype).eval()


def make_config(**sections: Any) -> TrainConfig:
    """A configuration; sections are given as dictionaries."""
    base: dict[str, Any] = {
        "run_dir": "unused",
        "env": {"id": "envgym/PointerChase-v0"},
        "num_iterations": 4,
        "dtype": "float64",
        "rollout": {"episodes_per_iteration": 8},
        "actor": {"learning_rate": 1e-3},
        "critic": {"optimizer": {"learning_rate": 1e-3}, "head_init": "orthogonal"},
        "update": {"num_epochs": 1, "num_minibatches": 1},
    }
    return TrainConfig.model_validate(base | sections)


EVERYTHING: dict[str, Any] = {
    "rollout": {"episodes_per_iteration": 8, "temperature": 0.8},
    "actor": {"learning_rate": 5e-3, "weight_decay": 0.01},
    "critic": {"optimizer": {"learning_rate": 5e-3}, "head_init": "orthogonal", "value_clip": 0.1},
    "kl": {"beta": 0.05, "estimator": "k3", "target": 0.01, "horizon": 20.0},
    "update": {"num_epochs": 2, "num_minibatches": 3},
    "estimator": {"gamma": 0.95, "gae_length_alpha": 0.5},
    "loss": {
        "clip_high": 0.28,
        "dual_clip": 1.5,
        "entropy_coefficient": 0.01,
        "importance": "tis",
    },
}
"""KL reference with adaptive beta, entropy bonus, dual clip, value clip, importance weights, several epochs."""


def make_trajectory(number: int, *, ending: str = "terminated", num_turns: int = 2, words: int = 3) -> Trajectory:
    """A hand-made episode. `ending` is "terminated", a truncation reason, or "failed"."""
    rng = random.Random(number)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCAB) for _ in range(count))

    cut = ending in ("response_length", "context")
    turns = []
    for n in range(num_turns):
        count = 1 + rng.randrange(words)
        last_cut = cut and n == num_turns - 1
        reward = 0.0 if last_cut else round(rng.uniform(-1, 1), 3)
        turns.append(
            Turn(
                observation="o",
                action="a",
                reward=reward,
                reward_components={"r": reward},
                observation_ids=ids(1 + rng.randrange(4)),
                action_ids=ids(count),
                behavior_logprobs=tuple(rng.uniform(-6, -2) for _ in range(count)),
                executed=not last_cut,
                finish_reason={"response_length": "length", "context": "context"}[ending] if last_cut else "stop",
            )
        )
    reason = {"context": TruncationReason.CONTEXT_OVERFLOW}.get(ending)
    if reason is None and ending not in ("terminated", "failed"):
        reason = TruncationReason(ending)
    return Trajectory(
        env_id="test/Hand-v0",
        seed=number,
        turns=tuple(turns),
        terminated=ending == "terminated",
        truncated=reason is not None,
        truncation_reason=reason,
        final_observation_ids=() if cut else ids(3),
        success=rng.random() < 0.5,
        failure="RuntimeError: gone" if ending == "failed" else None,
    )


def make_samples(count: int = 7) -> list[Sample]:
    """Samples of different lengths and endings."""
    endings = ("terminated", "max_turns", "response_length", "terminated", "context", "time_limit", "terminated")
    return [
        make_sample(make_trajectory(i, ending=endings[i % len(endings)], num_turns=1 + i % 4, words=2 + 3 * (i % 3)), i)
        for i in range(count)
    ]


def make_learner(config: TrainConfig, lm: Any = None, **seams: Any) -> Learner:
    """A learner on the ranks of the present process group; `seams` are its loss and estimator."""
    lm = make_lm(getattr(torch, config.dtype)) if lm is None else copy.deepcopy(lm)
    learner = Learner(lm, config, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), device=CPU, **seams)
    if learner.critic is not None:
        learner.critic.init_head(config.critic.head_init, seed=config.seed)
    return learner


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters by name; a collective."""
    return {name: full_tensor(parameter).clone() for name, parameter in module.named_parameters()}


def on_ranks(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs `function(*args)` in that many processes joined by gloo and returns what each returned, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (num_ranks, folder, function, args), nprocs=num_ranks, join=True)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def _rank(rank: int, num_ranks: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", num_ranks)
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks, store=store, timeout=timedelta(seconds=120))
    try:
        torch.save(function(*args), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
