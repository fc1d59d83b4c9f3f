"""A person at the terminal as an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from envgym.agent import Agent, Player
from envgym.env import TextEnv


class HumanAgent(Agent):
    """Shows observations and rewards, and reads actions one line at a time.

    Args:
        read: Asks for a line, like `input`; its EOFError ends the episode as failed.
        write: Shows a line, like `print`.
    """

    name = "human"

    def __init__(self, *, read: Callable[[str], str] = input, write: Callable[[str], Any] = print) -> None:
        self.read = read
        self.write = write

    def start(self, env: TextEnv, *, seed: int) -> Player:
        base = cast(TextEnv, env.unwrapped)
        if base.system_prompt:
            self.write(base.system_prompt)
        for schema in base.tools:
            function = schema["function"]
            self.write(
                f"{function['name']}({', '.join(function['parameters']['properties'])}): {function['description']}"
            )
        return HumanPlayer(self.read, self.write)


class HumanPlayer(Player):
    """One episode of a person.

    Args:
        read: Asks for a line.
        write: Shows a line.
    """

    def __init__(self, read: Callable[[str], str], write: Callable[[str], Any]) -> None:
        self.read = read
        self.write = write

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        self._show(observation, info)
        return self.read("> ")

    def final_observation_ids(self, observation: str, info: Mapping[str, Any]) -> tuple[int, ...]:
        """Shows how the episode ended; a person has no tokens."""
        self._show(observation, info)
        if "success" in info:
            self.write("solved" if info["success"] else "not solved")
        return ()

    def _show(self, observation: str, info: Mapping[str, Any]) -> None:
        components = info.get("reward_components")
        if components is not None:  # every step says so, only the reset does not
            parts = ", ".join(f"{name} {value:+.2f}" for name, value in components.items())
            self.write(f"reward {sum(components.values()):+.2f}" + (f" ({parts})" if parts else ""))
        self.write(observation)
