"""What the training recipes reach, as the Markdown tables of docs/results.md.

Run: `OMP_NUM_THREADS=1 PYTHONPATH=tests python tests/benchmarks/bench_training.py RECIPE [--seeds 0 1 2]`, where RECIPE
is `pointer-chase`, `higher-lower` or `upkeep`.

"Before" is the policy after the warm start, "after" the trained one, both on the same held-out seeds. CPU seconds are
those of the whole process over the run, evaluations included. `upkeep` trains every seed twice: as the learner does it,
and with the value after a truncation set to zero.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from blind_learner import zeroed_bootstrap

from envgym.config import TrainConfig
from envgym.training import TrainResult, recipes, train

Recipe = Callable[..., TrainConfig]


def timed_run(recipe: Recipe, seed: int) -> tuple[TrainResult, float]:
    """Trains in a temporary folder; returns the result and the CPU seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        result = train(recipe(Path(folder) / "run", seed=seed))
        return result, time.process_time() - start


def success_table(recipe: Recipe, seeds: list[int]) -> None:
    """Prints success and return before and after, one row a seed."""
    print("| seed | sampled success | greedy success | sampled return | CPU s |")
    print("|---|---|---|---|---|", flush=True)
    for seed in seeds:
        result, seconds = timed_run(recipe, seed)
        before, after = result.before, result.after
        cells = [f"{before[kind].success:.2f} → {after[kind].success:.2f}" for kind in ("sampled", "greedy")]
        cells.append(f"{before['sampled'].mean_return:.2f} → {after['sampled'].mean_return:.2f}")
        print(f"| {seed} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


def upkeep_table(seeds: list[int]) -> None:
    """Prints reward per turn before and after training in both ways, one row a seed."""
    print("| seed | play | before | bootstrapped | zeroed | CPU s, each way |")
    print("|---|---|---|---|---|---|", flush=True)
    for seed in seeds:
        kept, seconds = timed_run(recipes.upkeep, seed)
        with zeroed_bootstrap():
            zeroed, zeroed_seconds = timed_run(recipes.upkeep, seed)
        for kind in ("sampled", "greedy"):
            rewards = [report[kind].reward_per_turn for report in (kept.before, kept.after, zeroed.after)]
            cells = " | ".join(f"{reward:.3f}" for reward in rewards)
            print(f"| {seed} | {kind} | {cells} | {seconds:.0f}, {zeroed_seconds:.0f} |", flush=True)


def main() -> None:
    """Prints the table of one recipe."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", choices=("pointer-chase", "higher-lower", "upkeep"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    if arguments.recipe == "upkeep":
        upkeep_table(arguments.seeds)
    else:
        recipe = {"pointer-chase": recipes.quickstart, "higher-lower": recipes.higher_lower}[arguments.recipe]
        success_table(recipe, arguments.seeds)


if __name__ == "__main__":
    main()
