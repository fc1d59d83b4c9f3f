"""Plays on a served policy, for the tests of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import torch

import envgym
from envgym import TextEnv
from envgym.agents.policy_agent import PolicyAgent
from envgym.learner.batch import collate, make_sample
from envgym.learner.model import Actor
from envgym.model_folder import load_model, load_tokenizer
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import Collection, Collector, EpisodeRequest
from envgym.types import Completion, SamplingParams, Trajectory


def make_agent(policy: Any, folder: Any, **sampling: Any) -> PolicyAgent:
    """An agent whose turns are short: every other byte ends one, so that an untrained model comes to an end."""
    stop = tuple(range(0, 256, 2))
    params = SamplingParams(**({"max_new_tokens": 16, "stop_token_ids": stop} | sampling))
    return PolicyAgent(policy, ChatMLRenderer(load_tokenizer(folder)), params)


def make_env(max_turns: int = 6) -> TextEnv:
    return envgym.make("envgym/PointerChase-v0", max_turns=max_turns)


def collect(
    agent: PolicyAgent,
    count: int,
    *,
    env: Callable[[], TextEnv] = make_env,
    concurrency: int = 32,
    spares: int = 0,
    on_episode: Callable[[int, Trajectory], None] | None = None,
    allow_missing: bool = False,
) -> Collection:
    requests = [
        EpisodeRequest(seed, seed, tuple(10_000 * (spare + 1) + seed for spare in range(spares)))
        for seed in range(count)
    ]
    collector = Collector(env, concurrency=concurrency, num_threads=4)
    try:
        return collector.collect(agent, requests, on_episode=on_episode, allow_missing=allow_missing)
    finally:
        collector.close()


def recomputed(
    folder: Any, trajectories: Sequence[Trajectory], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the learner makes of the sampled tokens of trajectories, and what was recorded: two float64 [K]."""
    samples = [make_sample(trajectory, index) for index, trajectory in enumerate(trajectories)]
    actor, ours = Actor(load_model(folder)), []
    for start in range(0, len(samples), 32):
        batch = collate(samples[start : start + 32], dtype=torch.float32, device=torch.device("cpu"))
        rows, cols = batch.action_mask.nonzero(as_tuple=True)
        with torch.no_grad():
            logprobs, _ = actor(
                batch.token_ids, rows, cols, temperature=temperature, supports=batch.supports, with_entropy=False
            )
        ours.append(logprobs.double())
    recorded = [torch.tensor(turn.behavior_logprobs, dtype=torch.float64) for turn in turns(trajectories)]
    return torch.cat(ours), torch.cat(recorded)


def turns(trajectories: Sequence[Trajectory]) -> list[envgym.Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]


async def play(
    policy: Any, seed: int, sampling: SamplingParams, *, num_turns: int = 3
) -> list[tuple[list[int], Completion]]:
    """One episode of random observations; returns its prompts and completions."""
    rng, session, played = random.Random(seed), policy.open_session(seed=seed), []
    prompt = [rng.randrange(256) for _ in range(rng.randint(5, 30))]
    try:
        for _ in range(num_turns):
            completion = await policy.generate(prompt, sampling, session=session)
            played.append((list(prompt), completion))
            prompt = [*prompt, *completion.token_ids, *(rng.randrange(256) for _ in range(rng.randint(1, 8)))]
    finally:
        policy.close_session(session)
    return played


def wait_until_running(url: str, count: int, *, timeout_s: float = 60.0) -> None:
    """Wait until a server runs so many requests, each of which has drawn a token; by its own count, not by the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        with urllib.request.urlopen(f"{url}/v1/loads", timeout=timeout_s) as answer:
            running = sum(load["num_running_reqs"] for load in json.loads(answer.read())["loads"])
        if running >= count:
            return
        assert time.monotonic() < deadline, f"{url} runs {running} requests, not {count}, after {timeout_s} s"
        time.sleep(0.01)


async def until_running(url: str, count: int) -> None:
    """`wait_until_running`, off the loop."""
    await asyncio.to_thread(wait_until_running, url, count)
