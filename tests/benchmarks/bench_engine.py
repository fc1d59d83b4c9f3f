"""Throughput of the embedded engine: generated tokens per CPU second, on multi-turn episodes of 150 to 300 tokens.

Run: `OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_engine.py [--quick]`

Every generated token comes with its log-probability. Prefill, sampling and the event loop are all in the measured time,
which is CPU time of this process on one thread. Variants take turns and the median over rounds is shown, since machines
are noisy. `transformers` is `generate` called once per turn on the batch of whole prompts, as a loop without an engine
would do it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.embedded.tiny_model import create_model
from envgym.model_folder import load_model
from envgym.types import SamplingParams

BATCHES = (1, 16, 64, 256)
TARGETS = {64: 22_400, 128: 13_600}
"""Tokens per CPU second at batch 64 that the project promises, by hidden size."""


@dataclass(frozen=True)
class Script:
    """One episode: a first prompt, then for each turn how many tokens to sample and which observation follows."""

    seed: int
    prompt: list[int]
    turns: list[tuple[int, list[int]]]


def scripts(count: int) -> list[Script]:
    """Episodes of 6 turns: a prompt of 30 to 60 tokens, actions of 8 to 32 tokens, observations of 8 to 24."""
    rng = random.Random(0)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(256) for _ in range(rng.randint(low, high))]

    return [Script(i, ids(30, 60), [(rng.randint(8, 32), ids(8, 24)) for _ in range(6)]) for i in range(count)]


def run_engine(policy: TorchPolicy, episodes: list[Script], concurrency: int) -> int:
    """Plays the episodes, `concurrency` at a time; returns how many tokens were generated."""
    queue = iter(episodes)
    tokens = 0

    async def play(script: Script, session: int) -> int:
        prompt, total = list(script.prompt), 0
        for max_new_tokens, observation in script.turns:
            completion = await policy.generate(prompt, SamplingParams(max_new_tokens=max_new_tokens), session=session)
            assert len(completion.logprobs) == max_new_tokens
            total += max_new_tokens
            prompt += completion.token_ids
            prompt += observation
        return total

    async def worker(first: Script, session: int) -> None:
        nonlocal tokens
        script: Script | None = first
        while script is not None:
            played = await play(script, session)
            tokens += played
            policy.close_session(session)
            script = next(queue, None)
            if script is not None:
                session = policy.open_session(seed=script.seed)

    async def main() -> None:
        starts = [script for script, _ in zip(queue, range(concurrency), strict=False)]
        await asyncio.gather(*[worker(script, policy.open_session(seed=script.seed)) for script in starts])

    asyncio.run(main())
    return tokens


def run_transformers(model: torch.nn.Module, episodes: list[Script], concurrency: int) -> int:
    """Plays the episodes in batches with `generate` per turn; only the tokens asked for count."""
    tokens = 0
    for start in range(0, len(episodes), concurrency):
        batch = episodes[start : start + concurrency]
        prompts = [list(script.prompt) for script in batch]
        for turn in range(len(batch[0].turns)):
            width = max(map(len, prompts))
            ids = torch.tensor([[256] * (width - len(p)) + p for p in prompts])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
            longest = max(script.turns[turn][0] for script in batch)
            with torch.inference_mode():
                output = model.generate(  # type: ignore[operator]
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=longest,
                    min_new_tokens=longest,
                    pad_token_id=256,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
                new = output.sequences[:, width:]
                logprobs = torch.stack(output.logits, 1).log_softmax(-1).gather(2, new[:, :, None])
                assert logprobs.shape[1] == longest
            for prompt, script, row in zip(prompts, batch, new.tolist(), strict=True):
                count, observation = script.turns[turn]
                prompt += row[:count] + observation
                tokens += count
    return tokens


def measurements(hidden_size: int, quick: bool) -> Iterator[tuple[int, float, float]]:
    """For each batch size the median tokens per CPU second of the engine and of transformers."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(create_model(Path(folder), hidden_size=hidden_size))
        model.generation_config.top_k = 0
        for batch in BATCHES:
            policy = TorchPolicy(model, max_concurrency=batch)
            episodes = scripts(batch if quick else max(2 * batch, 8))
            baseline = episodes[: min(batch, 64)]
            run_engine(policy, episodes[:batch], batch)  # warms up, grows the cache
            engine, other = [], []
            for round_ in range(2 if quick else 5):
                engine.append(_rate(lambda p=policy, e=episodes, b=batch: run_engine(p, e, b)))
                if round_ < (1 if quick else 3):
                    other.append(_rate(lambda e=baseline, b=batch: run_transformers(model, e, b)))
            yield batch, statistics.median(engine), statistics.median(other)


def _rate(run: object) -> float:
    start = time.process_time()
    tokens = run()  # type: ignore[operator]
    return tokens / (time.process_time() - start)


def main() -> int:
    """Prints the table; exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and rounds, about 20 seconds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    missed = 0
    print(f"{'d':>4} {'batch':>6} {'engine tok/CPU s':>17} {'transformers':>13} {'ratio':>7}")
    for hidden_size, target in TARGETS.items():
        for batch, engine, other in measurements(hidden_size, quick):
            verdict = ""
            if batch == 64:
                verdict = f"  target {target:,}: {'met' if engine >= target else 'MISSED'}"
                missed += engine < target
            print(
                f"{hidden_size:>4} {batch:>6} {engine:>17,.0f} {other:>13,.0f} {engine / other:>7.1f}{verdict}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
