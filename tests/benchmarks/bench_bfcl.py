"""Speed of the BFCL bridge: loading, starting an episode, and replaying the recorded answers of all 800 tasks.

Run: `PYTHONPATH=. python tests/benchmarks/bench_bfcl.py`

CPU time of this process, on one core. The target is all 800 tasks in less than 60 seconds.
"""

from __future__ import annotations

import itertools
import time

from envgym.environments.bfcl import BfclMultiTurn
from envgym.environments.bfcl.tasks import SUBSETS

TARGET_S = 60.0


def replay(env: BfclMultiTurn, task_id: str) -> tuple[float, bool, int]:
    """Total reward, success and number of steps of one replay."""
    observation, info = env.reset(options={"task": task_id})
    player = env.solver()
    total, num_steps = 0.0, 0
    while True:
        step = env.step(str(player.act(observation, info)))
        observation, info = step.observation, step.info
        total, num_steps = total + step.reward, num_steps + 1
        if step.terminated:
            return total, info["success"], num_steps


def main() -> None:
    print(f"{'format':8}{'subset':14}{'solved':>8}{'load ms':>9}{'reset ms':>10}{'step ms':>9}{'total s':>9}")
    for call_format in ("hermes", "python"):
        whole = 0.0
        for subset in SUBSETS:
            marks = [time.process_time()]
            env = BfclMultiTurn(subset=subset, call_format=call_format)
            marks.append(time.process_time())
            for task_id in env.task_ids:
                env.reset(options={"task": task_id})
            marks.append(time.process_time())
            played = [replay(env, task_id) for task_id in env.task_ids]
            marks.append(time.process_time())
            load, resets, replays = (b - a for a, b in itertools.pairwise(marks))
            solved = sum(total == 1.0 and success for total, success, _ in played)
            each = (replays - resets) / sum(num_steps for _, _, num_steps in played)
            row = f"{1e3 * load:9.1f}{1e3 * resets / env.num_tasks:10.3f}{1e3 * each:9.3f}{replays:9.2f}"
            print(f"{call_format:8}{subset:14}{solved:4}/{env.num_tasks}{row}")
            whole += load + replays
        print(f"{call_format}: 800 tasks in {whole:.2f} s of CPU time (target {TARGET_S:.0f} s)")


if __name__ == "__main__":
    main()
