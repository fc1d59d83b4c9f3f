"""Every environment: what all promise alike, stated once; the rules of each are in the file of its name."""

import contextlib
import pickle
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
from episodes import demonstrator, global_state, play, solver

import envgym
from envgym.errors import MissingDependencyError

BRIDGES = {
    "BfclMultiTurn": "bfcl_eval",
    "ReasoningGym": "reasoning_gym",
    "Tau2": "tau2.domains.mock.environment",
    "TextArena": "textarena",
    "TextWorld": "textworld",
}
"""The package that the environments whose names begin so are a bridge to."""
NAMES = [id[7:-3] for id in envgym.list_environments() if id.startswith("envgym/")]
NATIVE = [name for name in NAMES if not name.startswith(tuple(BRIDGES))]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def make(name, **kwargs):
    """The registered environment of this name; skips where its package is not installed."""
    for start, package in BRIDGES.items():
        if name.startswith(start):
            pytest.importorskip(package)
    return envgym.make(f"envgym/{name}-v0", **kwargs)


# --- the contract ---

QUICK = ("Mastermind", "LightsOut", "ThreeCardMonte", "Bandit", "Slitherlink")
"""Games of TextArena that are checked in every run of the tests."""
CHECKED = [
    *((name, {}) for name in NAMES if not name.startswith(("TextArena", "TextWorld"))),
    *((f"TextArena{name}", {}) for name in QUICK),
    *(slow(name, {}) for name in NAMES if name.startswith("TextArena") and not name.endswith(QUICK)),
    slow("TextWorld", {"games": 3}),
    ("ReasoningGym", {"dataset": "leg_counting", "attempts": 3}),
    ("ReasoningGym", {"dataset": "boxnet", "attempts": 2}),
    *(("BfclMultiTurn", {"subset": s, "call_format": "python"}) for s in ("miss_func", "miss_param", "long_context")),
]


@pytest.mark.parametrize(("name", "kwargs"), CHECKED, ids=str)
def test_it_passes_every_check(name, kwargs):
    make(name, **kwargs).close()
    envgym.check_env(lambda: envgym.make(f"envgym/{name}-v0", **kwargs)).raise_if_failed()


@pytest.mark.parametrize("name", NATIVE)
def test_an_episode_can_be_pickled_in_the_middle(name):
    env = make(name).unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    first, *rest = [env.action_space.sample() for _ in range(4)]
    if not env.step(first).terminated:
        copy = pickle.loads(pickle.dumps(env))
        for action in rest:
            step = env.step(action)
            assert copy.step(action) == step
            if step.terminated:
                break


THREADED = [
    *((name, {}) for name in NATIVE),
    *((f"TextArena{name}", {}) for name in ("2048", "Bandit", "Blackjack", "Minesweeper", "Secretary")),
    *(("ReasoningGym", {"dataset": dataset}) for dataset in ("list_functions", "pool_matrix", "bf", "maze")),
    ("TextWorld", {"games": 3, "max_turns": 15}),
    ("Tau2Retail", {}),
]


@pytest.mark.parametrize(("name", "kwargs"), THREADED, ids=str)
def test_episodes_in_threads_are_those_played_alone_and_leave_the_global_state_alone(name, kwargs):
    make(name, **kwargs).close()
    before = global_state()

    def episode(seed):
        with contextlib.closing(make(name, **kwargs)) as env:
            return play(env, demonstrator, seed)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(episode, [*range(4)] * 2)) == [episode(seed) for seed in range(4)] * 2
    assert global_state() == before


# --- arguments ---

REFUSED = [
    *(("Assistant", argument) for argument in ({"requests": 0}, {"requests": 4}, {"call_format": "x"})),
    *(("BfclMultiTurn", kwargs) for kwargs in ({"subset": "live"}, {"call_format": "function"})),
    ("BfclMultiTurn", {"malformed_penalty": -1.0}),
    *(("Calculator", kwargs) for kwargs in ({"digits": 0}, {"digits": 5}, {"steps": 1}, {"steps": (3, 6)})),
    ("Calculator", {"call_format": "x"}),
    ("FileClerk", {"call_format": "x"}),
    ("FrozenLake", {"map_name": "16x16"}),
    *(("KeyDoor", {"rooms": rooms}) for rooms in (-1, 201)),
    *(("Mastermind", kwargs) for kwargs in ({"length": 0}, {"length": 9}, {"colours": 1}, {"colours": 10})),
    *(("Mastermind", kwargs) for kwargs in ({"guesses": 0}, {"guesses": 51}, {"colours": 9, "length": 8})),
    *(("PointerChase", kwargs) for kwargs in ({"hops": 0}, {"hops": 8}, {"hops": (3, 2)}, {"distractors": -1})),
    ("PointerChase", {"call_format": "x"}),
    *(("SqlAnalyst", kwargs) for kwargs in ({"tables": 0}, {"tables": 5}, {"tables": (3, 2)}, {"call_format": "x"})),
    *(("Tau2Retail", kwargs) for kwargs in ({"domain": "x"}, {"split": "x"}, {"user": "x"}, {"error_penalty": -1})),
    ("Tau2Retail", {"max_calls": 0}),
    *(("TextMaze", kwargs) for kwargs in ({"size": 1}, {"size": 13}, {"loops": -1}, {"loops": 51})),
    *(("TextWorld", kwargs) for kwargs in ({"level": 6}, {"rooms": 0}, {"objects": 61}, {"quest_length": 31})),
    *(("TextWorld", kwargs) for kwargs in ({"games": 0}, {"progress": -1})),
    *(("Wordle", kwargs) for kwargs in ({"guesses": 0}, {"guesses": 21}, {"unlisted": "x"})),
]


@pytest.mark.parametrize(("name", "kwargs"), REFUSED, ids=str)
def test_arguments_out_of_range_are_refused_and_named(name, kwargs):
    make(name).close()
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        make(name, **kwargs)


# --- players ---

SQL_EARNED = {"tables": 0.02, "describe": 0.08, "query": 0.1, "found": 0.2, "answer": 1.0}
SOLVED = [
    *(
        ("Assistant", kwargs, 100, {"goal": 1.0, "finish": 1.0})
        for kwargs in ({}, {"requests": 1}, {"requests": 3}, {"call_format": "hermes"})
    ),
    *(
        ("Calculator", kwargs, 100, {"progress": 0.5, "answer": 1.0})
        for kwargs in ({}, {"call_format": "hermes"}, {"digits": 4}, {"digits": 1, "steps": (2, 3)})
    ),
    ("CliffWalking", {}, 5, {"step": -13.0}),
    *(("FileClerk", {"call_format": kind}, 200, {"progress": 1.0, "finish": 1.0}) for kind in ("function", "hermes")),
    ("FrozenLake", {}, 20, {"goal": 1.0}),
    ("FrozenLake", {"map_name": "8x8"}, 10, {"goal": 1.0}),
    ("FrozenLake", {"map_name": "random"}, 30, {"goal": 1.0}),
    *(("KeyDoor", {"rooms": rooms}, 100, {"gate": 1.0}) for rooms in (0, 12, 24)),
    ("Mastermind", {}, 60, {"information": 1.0, "win": 1.0}),
    ("Mastermind", {"length": 5, "colours": 9, "guesses": 12}, 5, {"information": 1.0, "win": 1.0}),
    *(("PointerChase", {"call_format": kind}, 300, {"answer": 1.0}) for kind in ("function", "hermes")),
    *(("SqlAnalyst", {"call_format": kind}, 120, SQL_EARNED) for kind in ("function", "hermes")),
    ("Taxi", {}, 100, {"delivery": 20.0}),
    ("TextMaze", {}, 300, {"progress": 1.0, "exit": 1.0}),
    *(("TextMaze", {"size": size, "max_turns": 2 * size**2}, 20, {"exit": 1.0}) for size in (2, 3, 12)),
    *(("TextWorld", {"level": level, "games": 2}, 3, {"score": 1.0}) for level in (1, 3)),
    slow("TextWorld", {"level": 4, "games": 2}, 3, {"score": 1.0}),
    ("Wordle", {}, 100, {"green": 0.5, "yellow": 0.2, "win": 1.0}),
]
COSTS = {"CliffWalking": "step", "Taxi": "step"}
"""What each turn costs where even the shortest way pays."""
MAX_SOLVER_TURNS = {"Assistant": 24, "FileClerk": 24}


@pytest.mark.parametrize(("name", "kwargs", "num_seeds", "earned"), SOLVED, ids=str)
def test_the_solver_succeeds_on_every_seed_and_is_never_fined(name, kwargs, num_seeds, earned):
    with contextlib.closing(make(name, **kwargs)) as env:
        for seed in range(num_seeds):
            steps, sums = play(env, solver, seed), Counter()
            for step in steps:
                sums.update(step.info["reward_components"])
            assert steps[-1].terminated and steps[-1].info["success"] is True
            assert len(steps) <= MAX_SOLVER_TURNS.get(name, len(steps))
            assert {part: sums[part] for part in earned} == pytest.approx(earned)
            assert all(total > -1e-9 for part, total in sums.items() if part != COSTS.get(name))


BETWEEN = [
    ("Assistant", {}, 300, 0.4, 0.64),
    ("Calculator", {}, 300, 0.4, 0.62),
    ("FileClerk", {}, 300, 0.38, 0.62),
    ("FrozenLake", {}, 150, 0.15, 0.6),
    ("HigherLower", {}, 2000, 0.29, 0.35),
    ("KeyDoor", {}, 300, 0.4, 0.6),
    ("Mastermind", {}, 300, 0.55, 0.82),
    ("PointerChase", {}, 1000, 0.25, 0.38),
    ("ReasoningGym", {}, 100, 0.2, 0.55),
    ("SqlAnalyst", {}, 200, 0.38, 0.65),
    ("Taxi", {}, 60, 0.3, 1.01),
    ("TextArenaBandit", {}, 60, 0.3, 0.9),
    ("TextArenaFrozenLake", {}, 60, 0.1, 0.9),
    ("TextArenaThreeCardMonte", {}, 60, 0.4, 0.9),
    ("TextMaze", {}, 300, 0.35, 0.55),
    ("TextWorld", {"games": 3, "max_turns": 8}, 40, 0.1, 0.8),
    ("Wordle", {}, 150, 0.5, 0.75),
]
"""Episodes, and what share of them the demonstrator solves. Those of Blackjack and Upkeep are judged by reward."""


@pytest.mark.parametrize(("name", "kwargs", "num_seeds", "low", "high"), BETWEEN, ids=str)
def test_the_demonstrator_is_clearly_between_random_and_solver(name, kwargs, num_seeds, low, high):
    with contextlib.closing(make(name, **kwargs)) as env:
        rate = np.mean([play(env, demonstrator, seed)[-1].info["success"] for seed in range(num_seeds)])
    assert low < rate < high


@pytest.mark.parametrize("call_format", ["function", "hermes"])
@pytest.mark.parametrize("name", ["Assistant", "Calculator", "FileClerk", "PointerChase"])
def test_calls_are_drawn_well_formed(name, call_format):
    env = make(name, call_format=call_format).unwrapped
    for seed in range(2):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        for _ in range(60):
            assert "malformed" not in env.step(env.action_space.sample()).info["reward_components"]


# --- limits ---

CUT = [
    ("Assistant", {}, "list_mails()", 48),
    ("Calculator", {}, "add(1, 1)", 12),
    ("FileClerk", {}, "ls()", 48),
    ("FrozenLake", {}, "up", gymnasium.spec("FrozenLake-v1").max_episode_steps),
    ("FrozenLake", {"map_name": "8x8"}, "up", gymnasium.spec("FrozenLake8x8-v1").max_episode_steps),
    ("KeyDoor", {}, "open", 56),
    ("PointerChase", {}, "get(y0)", 8),
    ("SqlAnalyst", {}, "list_tables()", 16),
    (
        "Taxi",
        {},
        "north",
        gymnasium.spec("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3").max_episode_steps,
    ),
    ("TextMaze", {}, "?", 72),
    ("TextWorld", {"games": 3, "max_turns": 4}, "look", 4),
    ("Wordle", {"unlisted": "free"}, "?", 24),
]


@pytest.mark.parametrize(("name", "kwargs", "action", "num_turns"), CUT, ids=str)
def test_the_limit_of_turns_truncates_and_is_no_success(name, kwargs, action, num_turns):
    with contextlib.closing(make(name, **kwargs)) as env:
        env.reset(seed=3)
        steps = [env.step(action) for _ in range(num_turns)]
    assert [step.truncated for step in steps] == [False] * (num_turns - 1) + [True]
    assert not any(step.terminated for step in steps)
    assert steps[-1].info["truncation_reason"] == "max_turns" and steps[-1].info["success"] is False


@pytest.mark.parametrize("action", ["wrong", "?"])
@pytest.mark.parametrize(
    ("name", "wrong", "num_guesses"), [("HigherLower", "0", 6), ("Mastermind", "1111", 8), ("Wordle", "fuzzy", 6)]
)
def test_the_last_wrong_guess_terminates_without_success_and_shows_the_secret(name, wrong, num_guesses, action):
    env = make(name)
    env.reset(seed=0)
    steps = [env.step(wrong if action == "wrong" else action) for _ in range(num_guesses)]
    assert [step.terminated for step in steps] == [False] * (num_guesses - 1) + [True]
    assert not any(step.truncated for step in steps)
    assert steps[-1].info["success"] is False and "was " in steps[-1].observation


# --- what cannot be read ---

WORDS = ["", "0", "left right", "Go up", "hit!", "\ud800", "x" * 10**6]
MALFORMED = {
    "Assistant": ["", "ask(1)", "ask(one, day)", "create_event(review)", "hello", "cancel_event(e1"],
    "Blackjack": WORDS,
    "Calculator": ["", "3285", "add(1)", "add(1, x)", "answer(true)", "answer(NaN)", "power(2, 3)"],
    "CliffWalking": WORDS,
    "FileClerk": ["", "rm", "rm(/a", "mv(/a)", "delete(/a)", "rm -rf /", "rm(path=/a, recursive=2)"],
    "FrozenLake": WORDS,
    "HigherLower": ["", "forty", "32.0", "-3", "3 4", "٣", "²", "0x10", "1" * 10, "guess 32"],
    "KeyDoor": ["", "take", "take pink", "walk walk", "run", "0", "take the green key"],
    "Mastermind": ["", "123", "12345", "1237", "0123", "1 2 3 4", "guess 1234", "١٢٣٤", "²111", "-123"],
    "PointerChase": ["", "get", "get(k7", "answer(k7", "answer(k7, b4)", "go(k7)", "get()"],
    "Taxi": WORDS,
    "TextMaze": ["", "up", "go north", "northeast", "north east", "0", "no"],
    "Upkeep": ["", "Crop", "crop rest", "harvest", "crop."],
    "Wordle": ["", "pies", "guess crane", "cranes", "cr ne", "crané", "12345", "crane.", "0"],
}
STILL = ("Blackjack", "CliffWalking", "FrozenLake", "Taxi", "TextMaze")
"""Where the next observation shows that nothing has changed."""
SAYS = {
    "HigherLower": "whole number from 1 to 64",
    "Mastermind": "^expected 4 digits from 1 to 6$",
    "TextMaze": "expected north",
    "Wordle": "5 letters",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_cannot_be_read_costs_a_little_and_the_policy_is_told(name):
    with contextlib.closing(make(name)) as env:
        for action in MALFORMED[name]:
            before, _ = env.reset(seed=1)
            step = env.step(action)
            cost = getattr(env.unwrapped, "malformed", -0.05)
            assert step.reward < 0 and step.info["reward_components"] == {"malformed": cost}, action
            assert not step.terminated and step.observation
            assert name not in STILL or step.observation.endswith(before)
            assert re.search(SAYS.get(name, "."), step.info["action_error"])


# --- packages ---

MISSING = [
    ("BfclMultiTurn", "bfcl_eval", r"'bfcl'.*pip install --no-deps bfcl-eval==.* mpmath=="),
    ("BfclMultiTurn", "mpmath", r"'bfcl'.*pip install --no-deps bfcl-eval==.* mpmath=="),
    ("ReasoningGym", "reasoning_gym.factory", r"pip install 'envgym\[reasoning-gym\]'"),
    ("Tau2Mock", "loguru", r"loguru.*pip install 'envgym\[tau2\]'"),
    ("TextArenaBandit", "textarena.envs.registration", r"pip install 'envgym\[textarena\]'"),
    ("TextWorld", "textworld", r"pip install 'envgym\[textworld\]'"),
]


@pytest.mark.parametrize(("name", "package", "hint"), MISSING)
def test_a_missing_package_is_named_with_the_command_that_brings_it(name, package, hint):
    code = (
        f"import sys; sys.modules[{package!r}] = None; import envgym\n"
        f"try: envgym.make('envgym/{name}-v0')\n"
        "except envgym.errors.MissingDependencyError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(hint, result.stdout, re.DOTALL), result.stderr
    assert issubclass(MissingDependencyError, ImportError)


@pytest.mark.parametrize(
    ("name", "package"),
    [("BfclMultiTurn", "bfcl_eval"), ("ReasoningGym", "reasoning_gym"), ("TextArenaBandit", "textarena")],
)
def test_a_package_is_imported_on_use_in_silence(name, package):
    make(name).close()
    code = (
        f"import sys, os, random, envgym; envgym.spec('envgym/{name}-v0'); assert {package!r} not in sys.modules\n"
        "before = random.getstate(), dict(os.environ)\n"
        f"with __import__('contextlib').closing(envgym.make('envgym/{name}-v0')) as env: env.reset(seed=0)\n"
        f"assert {package!r} in sys.modules and (random.getstate(), dict(os.environ)) == before\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
