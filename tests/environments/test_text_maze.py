"""The text maze: views and rewards of a small one by hand, and a shaping that telescopes."""

import itertools

import numpy as np
import pytest

from envgym.environments.text_maze import TextMaze
from envgym.environments.text_maze.maze import MOVES, Maze, draw_maze, neighbour


def maze_of(size, *steps):
    return Maze(size, frozenset(pair for a, b in steps for pair in ((a, b), (b, a))))


def small():
    """A corridor round three sides: start (0, 0), exit (2, 0), the way (0,1) (0,2) (1,2) (2,2) (2,1)."""
    cells = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0)]
    env = TextMaze(size=3)
    env.reset(seed=0)
    env._maze = maze_of(3, *itertools.pairwise(cells))
    env._exit, env._cell = (2, 0), (0, 0)
    env._distances, env._scale = env._maze.distances((2, 0)), 1 / 6
    return env


def test_views_and_rewards_of_an_episode():
    env = small()
    step = env.step("north")
    assert step.observation == "north 0 east 2 south 0 west 0"
    assert step.info["reward_components"] == {"bump": -0.02} and "action_error" not in step.info
    step = env.step(" East\n")
    assert step.observation == "north 0 east 1 south 0 west 1"
    assert step.info["reward_components"] == {"progress": pytest.approx(1 / 6)}
    assert env.step("w").info["reward_components"] == {"progress": pytest.approx(-1 / 6)}
    for move in ("e", "e", "s"):
        step = env.step(move)
    assert step.observation == "north 1 east 0 south 1 west 0"
    assert env.step("south").observation == "north 2 east 0 south 0 west 2 exit west"
    assert env.step("west").observation == "north 0 east 1 south 0 west 1 exit west"
    step = env.step("west")
    assert step.terminated and step.info["success"] is True and step.observation == "exit"
    assert step.info["reward_components"] == {"progress": pytest.approx(1 / 6), "exit": 1.0}


def test_progress_telescopes_along_any_way():
    for seed in range(20):
        env = TextMaze()
        env.reset(seed=seed)
        start = env._distances[env._cell]
        env.action_space.seed(seed)
        total = 0.0
        for _ in range(60):
            step = env.step(env.action_space.sample())
            total += step.info["reward_components"].get("progress", 0.0)
            assert total == pytest.approx(1 - env._distances[env._cell] / start)
            if step.terminated:
                break


def test_mazes_are_connected_and_loops_are_counted():
    rng = np.random.default_rng(0)
    for size, loops in ((2, 0), (5, 0), (6, 3), (8, 10)):
        maze = draw_maze(size, loops, rng)
        assert len(maze.distances((0, 0))) == size * size
        assert len(maze.passages) // 2 == size * size - 1 + loops
    assert len(draw_maze(2, 50, rng).passages) // 2 == 4


def test_distances_are_those_of_a_slow_relaxation():
    maze = draw_maze(6, 4, np.random.default_rng(1))
    cells = [(row, column) for row in range(6) for column in range(6)]
    slow = {cell: (0 if cell == (3, 2) else 99) for cell in cells}
    for _ in cells:
        for cell, direction in itertools.product(cells, MOVES):
            if maze.opens(cell, direction):
                slow[cell] = min(slow[cell], 1 + slow[neighbour(cell, direction)])
    assert maze.distances((3, 2)) == slow


def test_starts_are_far_from_the_exit():
    env = TextMaze()
    for seed in range(50):
        env.reset(seed=seed)
        assert env._distances[env._cell] >= 6
