"""An environment of a user's own, in a module that nobody has installed; named as `own_games:mine/Double-v0`."""

import envgym
from envgym.agent import Player


class Double(envgym.TextEnv):
    """Double the number.

    Args:
        size: The number.
        broken: Whether every reset fails.
    """

    system_prompt = "Double."
    max_turns = 3

    def __init__(self, size: int = 4, *, broken: bool = False) -> None:
        self.answer = str(2 * (size + 0))
        self.size, self.broken = size, broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.broken:
            raise OSError("no board")
        return str(self.size), {}

    def step(self, action):
        if action.strip() == self.answer:
            return envgym.Step.terminal("yes", {"right": 1.0}, success=True)
        return envgym.Step.running("no", {} if action == "pass" else {"wrong": -0.25})

    def solver(self):
        return Teller(self.answer)

    def demonstrator(self, rng):
        return Teller(self.answer if rng.random() < 0.7 else "1")


class Teller(Player):
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def act(self, observation, info):
        return self.answer


class Endless(Double):
    """Goes on for ever."""

    max_turns = None

    def step(self, action):
        return envgym.Step.running("more", {"more": 1.0})


envgym.register("mine/Double-v0", Double)
envgym.register("mine/DoubleEndless-v0", Endless)
