"""TextArena: every game is reproducible, ends for the reason it says, and pays for that."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from episodes import demonstrator, global_state, play, solver

import envgym

pytest.importorskip("textarena", reason="pip install 'envgym[textarena]'")

from envgym.environments import text_arena
from envgym.environments.text_arena.package import drawing_from
from envgym.environments.text_arena.solvers import breadth_first, is_solvable_traffic

GAMES = [name for name in text_arena.__all__ if name != "TextArena"]
SLOW = ("TextArenaRushHour", "TextArenaSokoban", "TextArenaSet", "TextArenaFifteenPuzzle", "TextArenaCountdown")
SOLVED = [name for name in GAMES if name not in ("TextArena2048", "TextArenaBlackjack", "TextArenaSet")]


def marked(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


def make(name, **kwargs):
    return getattr(text_arena, name)(**kwargs)


def test_there_are_22_games_with_ids_and_a_tag():
    assert len(GAMES) == 22
    assert envgym.list_environments("textarena") == sorted(f"envgym/{name}-v0" for name in GAMES)


@pytest.mark.parametrize("name", marked(SOLVED))
def test_the_solver_succeeds(name):
    env = envgym.make(f"envgym/{name}-v0")
    for seed in range(6):
        steps = play(env, solver, seed)
        if name == "TextArenaCountdown" and not steps[-1].info["success"]:
            assert steps[-1].reward > 0.99  # no calculation reaches this target
            continue
        assert steps[-1].terminated and steps[-1].info["success"] is True
        assert steps[-1].info["reward_components"] == {"solved": 1.0}
        assert all(step.reward == 0 and step.info["success"] is False for step in steps[:-1])


@pytest.mark.parametrize("name", marked(GAMES))
def test_games_are_silent_reproducible_and_leave_the_global_state_alone(name, capfd):
    before = global_state()
    first, second = (play(make(name), demonstrator, seed=3, limit=25) for _ in range(2))
    assert first == second
    assert first[0].observation and not re.search(r"^\s*$", first[-1].observation)
    assert global_state() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", marked(GAMES))
def test_the_second_invalid_move_in_a_row_ends_the_game(name):
    env = make(name)
    env.reset(seed=1)
    first, second = env.step("[what]"), env.step("[what]")
    assert not first.terminated and first.info["action_error"] and first.reward == 0
    assert "invalid move" in first.observation.lower()
    assert second.terminated and list(second.info["reward_components"]) == ["invalid"]
    assert isinstance(second.info["action_error"], str) and "Invalid Move" in second.info["action_error"]
    assert second.info.get("success") in (False, None)
    assert second.reward <= 0.9


@pytest.mark.parametrize("name", marked(GAMES))
@pytest.mark.parametrize(
    "action", ["", "\ud800", "[²]", "[١ ٢]", "]" * 5000, "[" * 5000, "[" + "9" * 6000 + "]", "[[[]]]"]
)
def test_hostile_moves_are_answered(name, action):
    env = make(name)
    env.reset(seed=1)
    step = env.step(action)
    assert step.observation and not step.info.get("success"), "a hostile move was taken for a good one"


def turns_until_the_end(env, moves, seed=0):
    """The last step when these moves are made in turn, again and again."""
    env.reset(seed=seed)
    for turn in range(1000):
        step = env.step(moves(env, turn))
        if step.terminated or step.truncated:
            return step, turn + 1
    raise AssertionError("endless")


def test_a_limit_that_the_game_announces_terminates():
    def guesses(env, turn):
        return [f"[{n}]" for n in range(1, 21) if n != env.native.game_number][turn]

    step, turns = turns_until_the_end(make("TextArenaGuessTheNumber"), guesses)
    assert step.terminated and not step.truncated and step.info["success"] is False
    assert list(step.info["reward_components"]) == ["partial"] and "turn limit" in step.observation and turns == 11

    env = make("TextArenaLightsOut")
    step, turns = turns_until_the_end(env, lambda env, turn: "[0 0]", seed=4)
    assert step.terminated and turns == 20 and step.info["success"] is False


@pytest.mark.parametrize(
    ("name", "moves", "turns"),
    [
        ("TextArenaTowerOfHanoi", lambda env, turn: "[A B]" if turn % 2 == 0 else "[B A]", 15),
        ("TextArenaFrozenLake", lambda env, turn: wander(env), 101),
        ("TextArenaCryptarithm", lambda env, turn: f"[S {turn % 8 + 1}]", 101),
    ],
)
def test_a_limit_that_the_game_keeps_to_itself_truncates(name, moves, turns):
    step, taken = turns_until_the_end(make(name), moves)
    assert step.truncated and not step.terminated and step.info["truncation_reason"] == "max_turns"
    assert step.info["success"] is False and taken == turns and list(step.info["reward_components"]) == ["partial"]


def wander(env):
    """A step between the start and a safe cell beside it."""
    state = env.native.state.game_state
    if state["player_pos"] == (0, 1):
        return "[left]"
    if state["player_pos"] == (1, 0):
        return "[up]"
    return "[right]" if state["grid"][0][1] == " " else "[down]"


def test_limits_of_this_library_truncate_too():
    env = envgym.make("envgym/TextArena2048-v0", max_turns=3)
    env.reset(seed=0)
    steps = [env.step(move) for move in ("[up]", "[left]", "[down]")]
    assert [step.truncated for step in steps] == [False, False, True]
    assert steps[-1].info["truncation_reason"] == "max_turns"


def test_falling_into_a_hole_terminates_with_what_the_game_pays():
    env = make("TextArenaFrozenLake")
    env.reset(seed=0)
    grid = env.native.state.game_state["grid"]
    hole = next((r, c) for r in range(4) for c in range(4) if grid[r][c] == "H")
    above = (hole[0] - 1, hole[1]) if hole[0] else (hole[0], hole[1] - 1)
    env.native.state.game_state["player_pos"] = above
    step = env.step("[down]" if hole[0] else "[right]")
    assert step.terminated and step.info["success"] is False and "hole" in step.observation
    assert list(step.info["reward_components"]) == ["partial"] and 0 < step.reward < 1


@pytest.mark.parametrize(
    ("message", "move"),
    [
        *(("[1 2 3 4]", "[1 2 3 4]"), ("1 2 3 4", "[1 2 3 4]"), ("not [1 1 1 1] but [ 1 2 3 4 ].", "[1 2 3 4]")),
        *(("[1 2", "[1 2]"), ("", "[]"), ("[" + "7" * 500 + "]", "[" + "7" * 100 + "]"), ("[é]", "[?]")),
    ],
)
def test_the_move_is_what_the_last_brackets_hold(message, move):
    assert make("TextArenaMastermind").read_move(message) == move


def test_one_card_three_times_is_no_set():
    env = make("TextArenaSet")
    env.reset(seed=0)
    step = env.step("[1, 01, 1]")
    assert step.info["action_error"] and env.native.state.game_state["score"] == 0


def test_only_the_right_button_pays():
    env = make("TextArenaBandit")
    for right in (True, False):
        env.reset(seed=2)
        chances = env.native.state.game_state["ground_truth"]
        best = max(chances, key=chances.get)
        other = next(button for button in chances if button != best)
        for _ in range(20):
            assert env.step(f"[{other}]").reward == 0
        step = env.step(f"[{best if right else other}]")
        assert step.terminated and step.info["success"] is right and step.reward == float(right)


def test_variants_are_those_of_the_package():
    env = make("TextArenaTowerOfHanoi", variant="-medium")
    assert "4 disks" in env.reset(seed=0)[0]
    assert len(play(env, solver, seed=0)) == 15
    with pytest.raises(ValueError, match=r"variants of TowerOfHanoi are '', '-medium'.*got '-raw'"):
        make("TextArenaTowerOfHanoi", variant="-raw")


def test_seeds_decide_the_game():
    for name in ("TextArenaMinesweeper", "TextArenaCountdown", "TextArenaSudoku", "TextArenaCrosswords"):
        env = make(name)
        boards = [play(env, solver, seed, limit=2)[-1].observation for seed in (1, 2, 1)]
        assert boards[0] == boards[2] != boards[1]


def test_every_fifteen_puzzle_can_be_solved():
    env = make("TextArenaFifteenPuzzle")
    step = play(env, solver, seed=11)[-1]
    assert step.terminated and step.info["success"] is True and "solved" in step.observation


@pytest.mark.slow
def test_the_quick_check_of_rush_hour_says_what_the_package_says():
    env = make("TextArenaRushHour")
    env.reset(seed=0)
    game, answers = env.native, []
    for seed in range(12):
        with drawing_from(random.Random(seed)):
            cars = game._generate_random_puzzle()
        answers.append(type(game)._is_solvable(game, cars))
        assert is_solvable_traffic(cars, game.BOARD_SIZE) is answers[-1]
    assert set(answers) == {True, False}


@pytest.mark.slow
def test_sokoban_rooms_drawn_in_threads_are_those_drawn_alone():
    def room(seed):
        return make("TextArenaSokoban").reset(seed=seed)[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(room, range(8))) == [room(seed) for seed in range(8)]


def test_breadth_first_finds_a_shortest_way_by_hand():
    roads = {1: [("a", 2), ("b", 3)], 2: [("c", 4)], 3: [("d", 4), ("e", 5)], 4: [("f", 5)], 5: []}
    assert breadth_first(1, roads.__getitem__, lambda place: place == 5) == ["[b]", "[e]"]
    assert breadth_first(4, roads.__getitem__, lambda place: place == 1) == []
