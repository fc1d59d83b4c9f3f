"""TextWorld: generated games are reproducible, their points and endings are the game's, and their files go away."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from episodes import play, solver

pytest.importorskip("textworld", reason="pip install 'envgym[textworld]'")

from envgym.environments.text_world import TextWorld
from envgym.environments.text_world.games import LEVELS, World, game_file


def make(**kwargs):
    return TextWorld(**{"games": 3, **kwargs})


def test_the_quest_opens_the_first_observation_and_winning_pays_the_points():
    env = make()
    observation, info = env.reset(seed=0)
    assert info == {"success": False, "score": 0}
    assert str(env._state.objective) == observation.splitlines()[0]
    assert "-= " in observation and "$$" not in observation and "\n>" not in observation
    steps = play(env, solver, seed=0)
    assert len(steps) == LEVELS[2].quest_length
    assert [step.terminated for step in steps] == [False, False, True] and steps[-1].info["success"] is True
    assert [step.info["reward_components"] for step in steps] == [
        {"score": 0.0, "progress": 0.05},
        {"score": 0.0, "progress": 0.05},
        {"score": 1.0, "progress": 0.05},
    ]
    assert "The End" in steps[-1].observation and "RESTART" not in steps[-1].observation


def test_a_step_back_takes_the_progress_back():
    env = make()
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    for seed in range(20):
        env.reset(seed=seed)
        first = env.next_commands[0]
        if first.startswith("go "):
            assert env.step(first).info["reward_components"]["progress"] == 0.05
            assert env.step(f"go {back[first[3:]]}").info["reward_components"]["progress"] == -0.05
            break
    else:
        pytest.fail("no game begins with a step")


def test_losing_ends_without_success():
    class Lost:
        """A game that any command loses."""

        def step(self, command):
            lost = SimpleNamespace(
                score=0, max_score=1, intermediate_reward=-1, won=False, lost=True, feedback="gone\n>"
            )
            return lost, 0, True

        def close(self):
            pass

    env = make()
    env.reset(seed=0)
    env.close()
    env._game = Lost()
    step = env.step("look")
    assert step.terminated and step.info["success"] is False and step.observation == "gone"
    assert step.info["reward_components"] == {"score": 0.0, "progress": -0.05}


def test_what_is_shown_can_be_chosen():
    plain, full = make(), make(show_inventory=True, show_commands=True)
    first, second = plain.reset(seed=1)[0], full.reset(seed=1)[0]
    assert second.startswith(first) and first != second
    assert "You are carrying" in second and "commands: " in second and ", look" in second
    assert all(command in full.step("look").observation for command in full.commands)


def test_the_points_alone_can_be_paid():
    env = make(progress=0)
    steps = play(env, solver, seed=0)
    assert [step.info["reward_components"] for step in steps] == [{"score": 0.0}, {"score": 0.0}, {"score": 1.0}]


@pytest.mark.parametrize(
    "action",
    [
        *("", "quit", "restart", "save", "restore", "undo", "script", "tw-print player id", "look. save"),
        *("look then quit", "look\x00", "x" * 150, "look " * 60, "café", "take key, save", "\ud800"),
        *("player, drop key", "look; quit"),
    ],
)
def test_what_is_no_command_of_the_game_does_not_reach_it(action):
    env = make()
    env.reset(seed=0)
    way = env.next_commands
    step = env.step(action)
    assert step.info["reward_components"] == {"malformed": -0.05} and step.info["action_error"] == step.observation
    assert env.next_commands == way and not step.terminated


def test_lines_and_blanks_of_a_command_do_not_matter():
    env = make()
    env.reset(seed=0)
    assert env.step("  Look \n").info.get("action_error") is None


def test_the_turn_limit_grows_with_the_quest():
    assert make().max_turns == 50 and make(quest_length=12).max_turns == 96


def test_games_bounds_how_many_there_are_and_seeds_decide_which():
    env = make(games=2)
    assert len({env.reset(seed=seed)[0] for seed in range(8)}) == 2
    assert len({TextWorld().reset(seed=seed)[0] for seed in range(3)}) == 3
    assert make().reset(seed=5)[0] == make().reset(seed=5)[0]


def test_a_game_is_made_once_and_its_folder_goes_with_the_process():
    path = game_file(World(1, 4, 2), 1)
    made = path.stat().st_mtime_ns
    assert game_file(World(1, 4, 2), 1) == path and path.stat().st_mtime_ns == made
    code = (
        "import random, sys; import envgym; envgym.spec('envgym/TextWorld-v0'); assert 'textworld' not in sys.modules;"
        "state = random.getstate(); env = envgym.make('envgym/TextWorld-v0', level=1); env.reset(seed=0);"
        "assert random.getstate() == state; env.close();"
        "from envgym.environments.text_world import games; print(games._folder.name)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(result.stdout.splitlines()) == 1 and result.stderr == ""
    assert subprocess.run(["ls", result.stdout.strip()], capture_output=True).returncode != 0
