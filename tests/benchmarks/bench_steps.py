"""Steps per CPU second of an environment, and memory of 10,000 concurrent episodes.

Run: `python tests/benchmarks/bench_steps.py [--quick]`

Every variant plays the same kind of episode, resets included: random guesses of envgym/HigherLower-v0, random moves of
Gymnasium's FrozenLake-v1 as `gymnasium.make` gives it, and, where they are installed, TextArena's GuessTheNumber-v0,
raw and with its default wrappers, and GEM's game:GuessTheNumber-v0-easy. GEM is no dependency of this project; its
wheel runs beside what bridges.txt brings: `pip install --no-deps --target FOLDER gem-llm`, with FOLDER in PYTHONPATH.
Variants take turns and the median over rounds is shown, since machines are noisy: the ratios are what counts.

Vector environments are measured by the steps that reach an environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import gymnasium
import numpy as np

import envgym

ENV_ID = "envgym/HigherLower-v0"
GEM_ID = "game:GuessTheNumber-v0-easy"
NUM_ENVS = 16
NUM_EPISODES, MAX_GIB = 10_000, 2.0
REFERENCE = "gymnasium FrozenLake-v1"
TARGETS = {ENV_ID: 1.9}
"""Speed that the project promises, as a multiple of the reference."""
Variant = Callable[[int], float]
"""Takes a number of steps and returns the CPU seconds each took."""


def single(env: gymnasium.Env, actions: list) -> Variant:
    """Steps one environment."""

    def measure(count: int) -> float:
        env.reset(seed=0)
        started = time.process_time()
        for index in range(count):
            step = env.step(actions[index % len(actions)])
            if step[2] or step[3]:
                env.reset()
        return (time.process_time() - started) / count

    return measure


def vector(envs: gymnasium.vector.VectorEnv, actions: list) -> Variant:
    """Steps many copies; each ended one is reset in the same step, so that every step reaches an environment."""

    def measure(count: int) -> float:
        envs.reset(seed=0)
        started = time.process_time()
        for index in range(count // envs.num_envs):
            envs.step(actions[index % len(actions)])
        return (time.process_time() - started) / (count // envs.num_envs * envs.num_envs)

    return measure


def text_arena(env_id: str) -> Variant:
    import textarena

    env = textarena.make(env_id)

    def measure(count: int) -> float:
        env.reset(num_players=1, seed=0)
        started = time.process_time()
        for index in range(count):
            env.get_observation()
            ended, _ = env.step(f"[{index % 20 + 1}]")
            if ended:
                env.close()
                if hasattr(env, "full_observations"):  # not cleared by its reset: prompts grow from episode to episode
                    env.full_observations.clear()
                env.reset(num_players=1)
        return (time.process_time() - started) / count

    return measure


def text_arena_variants() -> dict[str, Variant]:
    return {
        "textarena GuessTheNumber-v0-raw": text_arena("GuessTheNumber-v0-raw"),
        "textarena GuessTheNumber-v0": text_arena("GuessTheNumber-v0"),
    }


def gem_variants() -> dict[str, Variant]:
    import gem

    guesses = [rf"\boxed{{{number}}}" for number in range(1, 11)]
    envs = gem.make_vec([GEM_ID] * NUM_ENVS)
    return {
        f"gem {GEM_ID}": single(gem.make(GEM_ID), guesses),
        f"gem.make_vec, {NUM_ENVS}": vector(envs, [[guess] * NUM_ENVS for guess in guesses]),
    }


def variants() -> dict[str, Variant]:
    rng = random.Random(0)
    guesses = [str(rng.randint(1, 64)) for _ in range(997)]
    moves = [rng.randrange(4) for _ in range(997)]
    same_step = {"autoreset_mode": "SameStep"}

    def batches(num_envs: int) -> list:
        return [tuple(rng.choices(guesses, k=num_envs)) for _ in range(97)]

    def ours(num_envs: int) -> Variant:
        return vector(envgym.make_vec(ENV_ID, num_envs, **same_step), batches(num_envs))

    found = {
        REFERENCE: single(gymnasium.make("FrozenLake-v1"), moves),
        ENV_ID: single(envgym.make(ENV_ID), guesses),
        **{f"envgym.make_vec, {num_envs}": ours(num_envs) for num_envs in (1, NUM_ENVS, 64, 256)},
        f"gymnasium.make_vec, {NUM_ENVS}": vector(
            gymnasium.make_vec(ENV_ID, NUM_ENVS, vector_kwargs=same_step), batches(NUM_ENVS)
        ),
        f"gymnasium.make_vec FrozenLake-v1, {NUM_ENVS}": vector(
            gymnasium.make_vec("FrozenLake-v1", NUM_ENVS, vector_kwargs=same_step),
            [np.array(rng.choices(moves, k=NUM_ENVS)) for _ in range(97)],
        ),
    }
    for package, more in (("textarena", text_arena_variants), ("gem", gem_variants)):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: left out")
        else:
            found |= more()
    return found


def episodes_memory() -> None:
    """Prints how much memory the concurrent episodes of this process take, in GiB."""
    import resource

    envs = [envgym.make(ENV_ID) for _ in range(NUM_EPISODES)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    for guess in ("65", "0", "66"):  # outside the range: no episode ends
        for env in envs:
            env.step(guess)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--memory", action="store_true", help="only the memory, of this process")
    arguments = parser.parse_args()
    if arguments.memory:
        episodes_memory()
        return 0
    rounds, count = (5, 6_400) if arguments.quick else (15, 19_200)
    measured = variants()
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, measure in measured.items():
            seconds[name].append(measure(count))
    missed = []
    print(f"{'':40} {'us/step':>8} {'x FrozenLake':>13}   (median of {rounds} rounds; target in parentheses)")
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[REFERENCE], values, strict=True))
        target = TARGETS.get(name)
        missed += [name] if target is not None and ratio < target else []
        promised = f" ({target:g})" if target else ""
        print(f"{name:40} {statistics.median(values) * 1e6:8.2f} {ratio:13.2f}{promised}")
    ours, theirs = f"envgym.make_vec, {NUM_ENVS}", f"gymnasium.make_vec, {NUM_ENVS}"
    ratio = statistics.median(a / b for a, b in zip(seconds[theirs], seconds[ours], strict=True))
    print(f"a step of {ours} is {ratio:.2f} x as fast as one of {theirs} (1, less noise)")
    memory = float(subprocess.check_output([sys.executable, __file__, "--memory"], text=True))
    print(f"{NUM_EPISODES} concurrent episodes take {memory:.2f} GiB ({MAX_GIB:g})")
    missed += [ours] * (ratio < 0.95) + ["memory"] * (memory > MAX_GIB)
    print(f"missed: {', '.join(missed)}" if missed else "every target is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
