"""Episodes played by the players that an environment brings, for the tests of environments."""

import os
import random

import numpy as np


def play(env, start, seed, limit=1000):
    """The steps of an episode, at most `limit`; `start(env, seed)` makes its player."""
    observation, info = env.reset(seed=seed)
    player, steps = start(env.unwrapped, seed), []
    while len(steps) < limit and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        steps.append(env.step(player.act(observation, info)))
        observation, info = steps[-1].observation, steps[-1].info
    return steps


def solver(env, seed):
    return env.solver()


def demonstrator(env, seed):
    return env.demonstrator(np.random.default_rng([seed, 1])) or env.solver()


def global_state():
    return random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2], dict(os.environ)
