"""The player of one episode: observations in, messages out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from envgym.types import Completion


@dataclass(frozen=True, slots=True)
class Action:
    """A message of a token-level player: its text, the tokens behind it and the tokens of the observation it answers.

    Attributes:
        text: What the environment receives.
        observation_ids: Tokens added to the prompt since the last action.
        completion: Sampled tokens and what is known about them.
    """

    text: str
    observation_ids: tuple[int, ...]
    completion: Completion


class PromptTooLong(Exception):
    """Raised by a player when the prompt no longer fits the context; ends the episode as a context overflow.

    Args:
        observation_ids: Tokens of the observation that did not fit.
    """

    def __init__(self, observation_ids: tuple[int, ...]) -> None:
        super().__init__("the prompt no longer fits the context window")
        self.observation_ids = observation_ids


class Player(ABC):
    """Plays one episode. Scripted players return text; players backed by a policy return an awaitable `Action`.

    A player is never called from two threads at a time, though not always from the same one where it blocks.

    Attributes:
        blocking: Whether `act` computes or waits for long before it returns. It then runs in a worker thread, where it
            keeps no other episode waiting; for an `act` of microseconds that would only cost time.
    """

    blocking: bool = False

    @abstractmethod
    def act(self, observation: str, info: Mapping[str, Any]) -> str | Action | Awaitable[str | Action]:
        """Answers an observation.

        Args:
            observation: Text that `reset` or the last `step` returned.
            info: The `info` that came with it.
        """

    def final_observation_ids(self, observation: str, info: Mapping[str, Any]) -> tuple[int, ...]:
        """Tokens of the last observation, rendered as the next prompt would be; empty for players without tokens."""
        return ()

    def close(self) -> None:  # noqa: B027 - most players hold nothing
        """Frees what the episode held. Called once, also after a failure."""
