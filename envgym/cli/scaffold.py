"""A new plug-in package with an environment of one's own: `envgym new`.

What is written is complete: an environment with process rewards, a solver and a demonstrator, tests, a README and a
`pyproject.toml` whose entry point envgym finds once the package is installed. It passes `check_env` as it is.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
description = "The envgym environment $env_id"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["envgym"]

[project.optional-dependencies]
test = ["pytest>=8"]

# envgym calls this function when it is first asked for an environment.
[project.entry-points."envgym.environments"]
$package = "$package:register_environments"

[tool.setuptools]
packages = ["$package"]

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
line-length = 120

[tool.ruff.lint]
select = ["E", "F", "W", "I", "B", "UP"]
"""

_INIT = '''\
"""`$env_id`."""

import envgym

from $package.environment import $cls

__all__ = ["$cls", "register_environments"]


def register_environments() -> None:
    """Adds the environments of this package to the registry; envgym calls it (see pyproject.toml)."""
    envgym.register("$env_id", "$package.environment:$cls")
'''

_ENVIRONMENT = '''\
"""Say the words of a list in alphabetical order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envgym import Step, TextEnv
from envgym.spaces import TextSpace

if TYPE_CHECKING:
    import numpy as np
    from envgym.agent import Player

WORDS = ("apple", "birch", "cedar", "daisy", "elder", "fern", "grape", "hazel", "iris", "juniper")


class $cls(TextEnv):
    """A list of words is to be said in alphabetical order, one word a turn.

    An episode::

        iris apple fern     apple
        iris fern           fern
        iris                iris
        all said

    Reward components: "right" 1 / words for the word that is next, "wrong" -0.1 for another word of the list,
    "malformed" -0.1 for anything else.

    Args:
        words: Length of the list; 2 to 10.

    Raises:
        ValueError: `words` is out of its range.
    """

    system_prompt = "Say the words in alphabetical order, one in each message."
    max_turns = 12
    reports_success = True  # an episode that ends without saying so has not succeeded

    def __init__(self, *, words: int = 4) -> None:
        if not 2 <= words <= len(WORDS):
            raise ValueError(f"words must be between 2 and {len(WORDS)}, got {words}")
        self.words = words
        self.action_space = TextSpace(WORDS)  # what a random agent says
        self._left: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random, the only source of randomness
        self._left = [WORDS[i] for i in self.np_random.choice(len(WORDS), size=self.words, replace=False)]
        return " ".join(self._left), {}

    def step(self, action: str) -> Step:  # type: ignore[override]
        word = action.strip()
        if word not in self._left:  # any text is legal: what makes no sense is answered, never raised
            return self._goes_on({"malformed": -0.1}, action_error="not a word of the list")
        if word != min(self._left):
            return self._goes_on({"wrong": -0.1})
        self._left.remove(word)
        if not self._left:
            return Step.terminal("all said", {"right": 1 / self.words}, success=True)
        return self._goes_on({"right": 1 / self.words})

    def _goes_on(self, components: dict[str, float], action_error: str | None = None) -> Step:
        return Step.running(" ".join(self._left), components, action_error=action_error)

    def solver(self) -> Player:
        """A player that always says the right word."""
        from $package.players import Sorter

        return Sorter()

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that often says another word of the list."""
        from $package.players import ClumsySorter

        return ClumsySorter(rng)
'''

_PLAYERS = '''\
"""Scripted players."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from envgym.agent import Player


class Sorter(Player):
    """Says the word that is next."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return min(observation.split())


class ClumsySorter(Player):
    """Says any word of the list in some turns.

    Args:
        rng: Source of its mistakes.
    """

    MISTAKE = 0.4
    """Probability that a turn is a word drawn from the list."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        words = observation.split()
        return str(self.rng.choice(words)) if self.rng.random() < self.MISTAKE else min(words)
'''

_TEST = '''\
"""The rules of `$env_id`, and what envgym checks in every environment."""

import envgym
import pytest

from $package import $cls

ENV_ID = "$env_id"


def test_it_is_registered_and_passes_every_check() -> None:
    assert ENV_ID in envgym.list_environments()
    envgym.check_env(ENV_ID).raise_if_failed()


def test_an_episode_pays_for_every_word_and_ends_with_the_last() -> None:
    env = envgym.make(ENV_ID, words=3)
    observation, _ = env.reset(seed=0)
    words = sorted(observation.split())
    assert len(words) == 3
    first = env.step(f" {words[0]} ")
    assert first[1] == pytest.approx(1 / 3) and first[2:4] == (False, False)
    assert sorted(first[0].split()) == words[1:]
    env.step(words[1])
    observation, _, terminated, truncated, info = env.step(words[2])
    assert (observation, terminated, truncated, info["success"]) == ("all said", True, False, True)


def test_wrong_and_senseless_words_cost_a_little_and_change_nothing() -> None:
    env = $cls()
    observation, _ = env.reset(seed=1)
    wrong = env.step(max(observation.split()))
    assert wrong.info["reward_components"] == {"wrong": -0.1} and wrong.observation == observation
    senseless = env.step("sort them for me")
    assert senseless.info["reward_components"] == {"malformed": -0.1} and senseless.observation == observation
    assert senseless.info["action_error"] == "not a word of the list"


def test_the_turn_limit_truncates() -> None:
    trajectory = envgym.run_episode(ENV_ID, lambda observation: "nothing")
    assert (trajectory.ending, len(trajectory.turns), trajectory.success) == ("max_turns", 12, False)


def test_players_are_ordered() -> None:
    agents = ("random", "demonstrator", "solver")
    random, clumsy, solver = (envgym.evaluate(agent, ENV_ID, episodes=100)[ENV_ID] for agent in agents)
    assert solver.success == 1.0 and solver.mean_return == pytest.approx(1.0)
    assert random.mean_return < clumsy.mean_return < solver.mean_return


def test_a_wrong_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="words must be between 2 and 10, got 11"):
        envgym.make(ENV_ID, words=11)
'''

_README = """\
# $title

`$env_id`: say the words of a list in alphabetical order.

    iris apple fern     apple
    iris fern           fern
    iris                iris
    all said

Install and use:

    pip install -e '.[test]'
    envgym check $env_id
    envgym play $env_id
    pytest

**Actions** One word a message.

**Arguments** `words` (length of the list, default 4).

**Reward** "right" 1 / words for the word that is next, so that all of them sum to 1; "wrong" -0.1 for another word of
the list; "malformed" -0.1 for anything else.

**Ending** The last word terminates. After 12 turns the episode is truncated (`max_turns`).

| player | success | reward |
|---|---|---|
| random | 0.03 | -0.77 |
| demonstrator | 1.00 | 0.90 |
| solver | 1.00 | 1.00 |

What to change: the rules are in `$package/environment.py`, the scripted players in `$package/players.py`, and
`tests/test_$package.py` states both. `envgym eval --agent random --env $env_id` gives the scores.
"""

_GITIGNORE = """\
__pycache__/
*.egg-info/
build/
dist/
.pytest_cache/
"""

_FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    ".gitignore": _GITIGNORE,
    "$package/__init__.py": _INIT,
    "$package/environment.py": _ENVIRONMENT,
    "$package/players.py": _PLAYERS,
    "tests/test_$package.py": _TEST,
}


def new_package(name: str, directory: Path | str = ".") -> list[Path]:
    """Writes a plug-in package with one environment, `name/Name-v0`, into the folder `directory / name`.

    Args:
        name: Name of the package: lower-case words joined by underscores, for example `my_env`.
        directory: Where the folder is made; made itself if need be.

    Returns:
        The files that were written.

    Raises:
        ValueError: The name cannot be used, or there is something at that path already. Nothing is written then.
    """
    _check_name(name)
    folder = Path(directory) / name
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"'{folder}' exists already and is left as it is; choose another name or another --dir")
    for parent in folder.parents:
        if parent.exists():
            if not parent.is_dir():
                raise ValueError(f"'{parent}' is not a folder; choose another --dir")
            break
    cls = "".join(word.capitalize() for word in name.split("_"))
    values = {
        "package": name,
        "project": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
        "cls": cls,
        "env_id": f"{name}/{cls}-v0",
    }
    written = []
    for path, text in _FILES.items():
        file = folder / Template(path).substitute(values)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(values), encoding="utf-8")
        written.append(file)
    return written


def _check_name(name: str) -> None:
    """Refuses a name that cannot be that of a package, or is another's."""
    if not _NAME.fullmatch(name):
        nearest = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f" Did you mean '{nearest}'?" if _NAME.fullmatch(nearest) else ""
        raise ValueError(
            f"'{name}' cannot name a package: use lower-case letters, digits and single underscores, and begin with a "
            f"letter, as in 'my_env'.{hint}"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ValueError(f"'{name}' is a word of the Python language; choose another name")
    if name in sys.stdlib_module_names or name in ("envgym", "test", "tests", "environments", "agents"):
        raise ValueError(f"'{name}' would hide a package that is needed; choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"a package '{name}' is installed already; choose another name")
