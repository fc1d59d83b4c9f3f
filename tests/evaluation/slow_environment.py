"""Registers an environment that takes its time, for processes that tests start: `slow_environment:test/Slow-v0`."""

import time

import envgym
from envgym import Step, TextEnv
from envgym.spaces import TextSpace


class Slow(TextEnv):
    """Three turns of 20 ms; solved when the last action is as long as the number drawn at reset says."""

    max_turns = 5
    action_space = TextSpace(("a", "bb", "ccc"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.length = 0, int(self.np_random.integers(1, 4))
        return str(self.length), {}

    def step(self, action):
        time.sleep(0.02)
        self.turn += 1
        right = len(action) == self.length
        components = {"right": float(right), "turn": -0.1}
        if self.turn < 3:
            return Step.running(f"{self.turn}", components)
        return Step.terminal("over", components, success=right)


envgym.register("test/Slow-v0", Slow)
