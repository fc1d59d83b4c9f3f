"""Throughput of served generation: what collecting through envgym yields of what the server can give.

Run: `OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_serving.py [--quick]`

Starts a server on the CPU (`envgym serve --install` first). Collection plays multi-turn episodes through the collector,
renderer and policy; the raw load then sends the prompts of these very episodes, turn after turn, with the same token
limits and as many at once, with nothing but an HTTP client between: what the server can give. Both ask for
log-probabilities. Rounds of the two take turns, with an empty cache each, and the medians are compared, since machines
are noisy. The second table has tokens per second of wall-clock time of the server, of the embedded engine and of
transformers' `generate` on the same prompts, one turn each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import envgym
from envgym.agents.policy_agent import PolicyAgent
from envgym.engines import SGLangServer
from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.embedded.tiny_model import create_model
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.model_folder import load_model, load_tokenizer
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.types import SamplingParams, Trajectory

TARGET = 0.9
"""Share of the raw load's tokens per second that collection must yield."""
CACHE_TARGET = 0.8
"""Share of the prompt tokens of 20-turn episodes that must come from the prefix cache."""
BATCHES = (1, 16, 64)
MAX_NEW_TOKENS = 24
# An untrained model ends a turn after 8 tokens on average, and is hardly ever cut.
SAMPLING = SamplingParams(max_new_tokens=100, stop_token_ids=tuple(range(0, 256, 8)))


def collect(policy: Any, renderer: ChatMLRenderer, episodes: int, concurrency: int, max_turns: int) -> list[Trajectory]:
    """Episodes of random play: nothing an untrained model says ends one early."""
    agent = PolicyAgent(policy, renderer, SAMPLING)
    collector = Collector(
        lambda: envgym.make("envgym/PointerChase-v0", max_turns=max_turns), concurrency=concurrency, num_threads=2
    )
    try:
        return list(collector.collect(agent, [EpisodeRequest(s, s) for s in range(episodes)]).trajectories)
    finally:
        collector.close()


def turns_of(trajectory: Trajectory) -> list[tuple[list[int], int]]:
    """Prompt and number of sampled tokens of each turn."""
    stream: list[int] = []
    found = []
    for turn in trajectory.turns:
        stream = [*stream, *turn.observation_ids]
        found.append((stream, len(turn.action_ids)))
        stream = [*stream, *turn.action_ids]
    return found


async def raw_load(url: str, trajectories: Sequence[Trajectory], concurrency: int) -> int:
    """Generates every turn's number of tokens from its prompt; returns how many that were."""
    import aiohttp

    waiting, tokens = iter(trajectories), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def client() -> None:
            nonlocal tokens
            for trajectory in waiting:
                for prompt, count in turns_of(trajectory):
                    sampling = {"max_new_tokens": count, "temperature": 1.0, "ignore_eos": True}
                    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
                    async with http.post(f"{url}/generate", json=body) as answer:
                        tokens += len(json.loads(await answer.read())["output_ids"])

        await asyncio.gather(*[client() for _ in range(concurrency)])
    return tokens


def compare(server: SGLangServer, folder: Path, *, rounds: int, episodes: int, concurrency: int) -> bool:
    """Prints collection against the raw load, and the cache's share; whether both targets are met."""
    client, renderer = SGLangClient(server.url), ChatMLRenderer(load_tokenizer(folder))
    ours, raw, share, cpu = [], [], [], []
    for _ in range(rounds + 1):
        client.flush_cache()
        policy = SGLangPolicy(server.url)
        started, processor = time.perf_counter(), time.process_time()
        trajectories = collect(policy, renderer, episodes, concurrency, max_turns=20)
        ours.append(sum(t.num_action_tokens for t in trajectories) / (time.perf_counter() - started))
        cpu.append(1e3 * (time.process_time() - processor) / policy.statistics().turns)
        share.append(policy.statistics().cached_share)
        client.flush_cache()
        started = time.perf_counter()
        tokens = asyncio.run(raw_load(server.url, trajectories, concurrency))
        raw.append(tokens / (time.perf_counter() - started))
        print(f"collection {ours[-1]:.0f}, raw load {raw[-1]:.0f} tokens/s", file=sys.stderr, flush=True)
    # The first round warms up.
    ratio = statistics.median(a / b for a, b in zip(ours[1:], raw[1:], strict=True))
    cached, cost = statistics.median(share[1:]), statistics.median(cpu[1:])
    print(f"{'':>24} {'tokens/s':>10}")
    print(f"{'raw load':>24} {statistics.median(raw[1:]):>10,.0f}")
    print(f"{'collection':>24} {statistics.median(ours[1:]):>10,.0f}")
    print(f"{'ratio':>24} {ratio:>10.2f}  target {TARGET}: {'met' if ratio >= TARGET else 'MISSED'}")
    print(f"{'prompt tokens cached':>24} {cached:>10.2f}  target {CACHE_TARGET}: {_verdict(cached >= CACHE_TARGET)}")
    print(f"{'CPU of a turn here, ms':>24} {cost:>10.2f}", flush=True)
    return ratio >= TARGET and cached >= CACHE_TARGET


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


async def one_turn_each(policy: Any, prompts: Sequence[list[int]]) -> int:
    """One turn of every prompt, all at once; returns the tokens."""
    sessions = [policy.open_session(seed=seed) for seed in range(len(prompts))]
    sampling = SamplingParams(max_new_tokens=MAX_NEW_TOKENS)

    async def turn(prompt: list[int], session: int) -> int:
        completion = await policy.generate(prompt, sampling, session=session)
        policy.close_session(session)
        return len(completion.token_ids)

    return sum(await asyncio.gather(*map(turn, prompts, sessions)))


def transformers_turn(model: Any, prompts: Sequence[list[int]]) -> int:
    """The same with `generate`, log-probabilities included."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            min_new_tokens=MAX_NEW_TOKENS,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=256,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = output.sequences[:, ids.shape[1] :]
        torch.stack(output.logits, 1).log_softmax(-1).gather(2, new[:, :, None])
    return new.numel()


def engines(server: SGLangServer, folder: Path, *, rounds: int) -> None:
    """Prints tokens per second of the three engines."""
    model = load_model(folder)
    print(f"\n{'batch':>6} {'SGLang':>10} {'embedded':>10} {'transformers':>13}  tokens/s")
    for batch in BATCHES:
        served, embedded = SGLangPolicy(server.url), TorchPolicy(model, max_concurrency=batch)
        prompts = [[(17 * i + 3 * k) % 256 for k in range(64)] for i in range(batch)]
        variants = {
            "sglang": lambda p=prompts, s=served: asyncio.run(one_turn_each(s, p)),
            "embedded": lambda p=prompts, e=embedded: asyncio.run(one_turn_each(e, p)),
            "transformers": lambda p=prompts: transformers_turn(model, p),
        }
        rates: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds + 1):
            for name, run in variants.items():
                started = time.perf_counter()
                rates[name].append(run() / (time.perf_counter() - started))
        medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
        print(
            f"{batch:>6} {medians['sglang']:>10,.0f} {medians['embedded']:>10,.0f} {medians['transformers']:>13,.0f}",
            flush=True,
        )


def main() -> int:
    """Prints both tables; exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        folder = create_model(Path(directory) / "model", context_length=4096)
        with SGLangServer(folder, "cpu") as server:
            size = 16 if quick else 64
            met = compare(
                server, folder, rounds=2 if quick else 7, episodes=size if quick else 2 * size, concurrency=size
            )
            engines(server, folder, rounds=2 if quick else 7)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
