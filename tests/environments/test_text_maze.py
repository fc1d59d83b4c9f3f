"""The text maze: views and rewards of a small one by hand, and a shaping that telescopes."""

import itertools
import pickle

import numpy as np
import pytest

import envgym
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


def play(env, player, seed):
    observation, info = env.reset(seed=seed)
    components, turns = {}, 0
    while True:
        step = env.step(player.act(observation, info))
        turns += 1
        for name, value in step.info["reward_components"].items():
            components[name] = components.get(name, 0.0) + value
        if step.terminated or step.truncated:
            return step, components, turns
        observation, info = step.observation, step.info


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


@pytest.mark.parametrize("action", ["", "up", "go north", "northeast", "north east", "0", "no"])
def test_anything_but_a_direction_is_malformed_and_moves_nothing(action):
    env = small()
    step = env.step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and "expected north" in step.info["action_error"]
    assert step.observation == "north 0 east 2 south 0 west 0" and not step.terminated


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


def test_the_limit_of_turns_truncates_and_is_no_success():
    env = envgym.make("envgym/TextMaze-v0")
    env.reset(seed=0)
    steps = [env.step("?") for _ in range(72)]
    assert [step.truncated for step in steps] == [False] * 71 + [True] and not any(step.terminated for step in steps)
    assert steps[-1].info["truncation_reason"] == "max_turns" and steps[-1].info["success"] is False


@pytest.mark.parametrize("arguments", [{"size": 1}, {"size": 13}, {"loops": -1}, {"loops": 51}])
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        TextMaze(**arguments)


def test_the_solver_succeeds_on_every_seed_and_earns_two():
    env = envgym.make("envgym/TextMaze-v0")
    for seed in range(300):
        step, components, turns = play(env, env.unwrapped.solver(), seed)
        assert step.info["success"] is True and turns <= 70
        assert components == {"progress": pytest.approx(1.0), "exit": 1.0}


def test_the_solver_succeeds_in_large_and_in_small_mazes():
    for size in (2, 3, 12):
        env = envgym.make("envgym/TextMaze-v0", size=size, max_turns=2 * size**2)
        assert all(play(env, env.unwrapped.solver(), seed)[0].info["success"] for seed in range(20))


def test_the_demonstrator_is_clearly_between_random_and_solver():
    env = envgym.make("envgym/TextMaze-v0")
    wins = [play(env, env.unwrapped.demonstrator(np.random.default_rng([s, 1])), s)[0].terminated for s in range(300)]
    assert 0.35 < np.mean(wins) < 0.55


def test_the_environment_passes_every_check_and_can_be_pickled():
    envgym.check_env("envgym/TextMaze-v0").raise_if_failed()
    env = small()
    assert pickle.loads(pickle.dumps(env)).step("east") == env.step("east")
