"""The user of a conversation: scripted from the task, or played by a chat model."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envgym.environments.tau2.device import Phone
from envgym.tools import ToolCall, parse_calls

if TYPE_CHECKING:
    from envgym.environments.tau2.episode import Episode

ChatUser = Callable[[list[dict[str, str]]], str]
"""Plays the user: gets the conversation as chat messages from the user's side, and returns the user's next message."""

STOP = re.compile(r"###(?:STOP|TRANSFER|OUT-OF-SCOPE)###")
"""What a model that plays the user writes to end the conversation, as in tau2."""

GREETING = "Hi! How can I help you today?"
"""What the agent is taken to have said first, as in tau2."""

MAX_READ = 8000
"""Characters of a message that the scripted user reads."""
PATIENCE = 5
"""Messages in a row, without a call in between, to which the scripted user has nothing new to say before giving up."""


class User(ABC):
    """The other side of one conversation."""

    @abstractmethod
    def open(self) -> str:
        """The first message."""

    @abstractmethod
    def answer(self, text: str) -> tuple[str, bool]:
        """The answer to a message of the agent, and whether it ends the conversation. The answer is never empty."""

    def notice_call(self) -> None:  # noqa: B027 - most users do not see what the agent looks up
        """Told when the agent has called a tool."""


class ScriptedUser(User):
    """Tells what the task says, piece by piece, does what it is asked to do with the phone, and ends the conversation.

    The pieces, in this order and each in an answer of its own: the reason for the call, what the user knows (and does
    not know) about itself, and the further instructions of the task. After that it confirms what the agent proposes,
    repeats who it is when asked, and stops as soon as the agent has nothing left to offer (`CLOSING`), once its phone
    works again (telecom), or after `PATIENCE` messages that lead nowhere. It does not weigh what the agent says: where
    a task says "if the agent refuses, ask for ...", the instruction is told, not acted out.

    Args:
        episode: The conversation.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._pieces = script(episode.task)
        self._identity = self._pieces[1] if len(self._pieces) > 1 else ""
        self._idle = 0
        self._phone: Phone | None = None
        self._goals: list[Any] = []
        if episode.environment.user_tools is not None:
            self._phone = Phone(episode.environment.user_tools, episode.user_calls)
            criteria = episode.task.evaluation_criteria
            goals = [goal for goal in (criteria and criteria.env_assertions) or [] if goal.env_type == "user"]
            if not all(episode.holds(goal) for goal in goals):
                self._goals = goals

    def open(self) -> str:
        return self._pieces.pop(0)

    def notice_call(self) -> None:
        self._idle = 0

    def answer(self, text: str) -> tuple[str, bool]:
        text = text[:MAX_READ]
        if self._phone is not None:
            if answers := self._phone.obey(text):
                self._idle = 0
                return "\n".join(answers), False
            if self._goals and all(self._episode.holds(goal) for goal in self._goals):
                return "It works now. Thank you, goodbye.", True
        if self._pieces:
            return self._pieces.pop(0), False
        if CLOSING.search(text):
            return "No, that is all. Thank you, goodbye.", True
        self._idle += 1
        if self._idle >= PATIENCE:
            return "This leads nowhere. Goodbye.", True
        if self._identity and _ASKS_WHO.search(text):
            return self._identity, False
        return "Yes, please go ahead.", False


CLOSING = re.compile(
    r"anything else|something else|further assistance|other questions|good ?bye|have a (?:great|good|nice|wonderful)"
    r"|transferred to a human|glad (?:i|we) could",
    re.I,
)
"""How an agent says that it has finished."""

_ASKS_WHO = re.compile(r"\b(?:name|e-?mail|zip|postcode|user id|phone number|identity|verify|reservation)\b", re.I)


class ModelUser(User):
    """A chat model in the role of the user, with tau2's guidelines, the task's scenario, and tools where it has any.

    Args:
        episode: The conversation.
        chat: Plays the user. An exception of it is a failure of the infrastructure: it ends the episode as failed.
    """

    MAX_CALLS = 8
    """Rounds of tool calls in one answer."""

    def __init__(self, episode: Episode, chat: ChatUser) -> None:
        self._episode = episode
        self._chat = chat
        self._messages = [{"role": "system", "content": instructions(episode)}]

    def open(self) -> str:
        return self.answer(GREETING)[0]

    def answer(self, text: str) -> tuple[str, bool]:
        self._messages.append({"role": "user", "content": text})
        for _ in range(self.MAX_CALLS):
            said = str(self._chat([dict(message) for message in self._messages]))
            self._messages.append({"role": "assistant", "content": said})
            calls = parse_calls(said, "hermes") if self._episode.domain.user_tools else []
            if not calls:
                ended = STOP.search(said) is not None
                said = STOP.sub("", said).strip()
                return said or ("Goodbye." if ended else "..."), ended
            answers = [
                str(self._episode.user_calls(call.name, call.arguments).content)
                if isinstance(call, ToolCall)
                else call.message
                for call in calls
            ]
            responses = "\n".join(f"<tool_response>{answer}</tool_response>" for answer in answers)
            self._messages.append({"role": "user", "content": responses})
        return "I am lost.", False


def script(task: Any) -> list[str]:
    """What the scripted user has to tell, in the first person; at least one piece."""
    scenario = task.user_scenario.instructions
    if isinstance(scenario, str):
        return [first_person(scenario)]
    about = " ".join(part for part in (scenario.known_info, scenario.unknown_info) if part)
    more = scenario.task_instructions.strip()
    if scenario.domain == "telecom":  # the rest is about how to use the phone
        sentences = re.split(r"(?<=[.!?])\s+", more)
        more = " ".join(part for part in sentences if not re.search(r"\bagent|\btool", part, re.I))
    pieces = [scenario.reason_for_call, about, more]
    return [first_person(piece) for piece in pieces if len(piece.strip()) > 1]


def first_person(text: str) -> str:
    """A text about "you" as said by that person, as far as a few replacements go."""
    text = " ".join(text.split())
    for pattern, replacement in _FIRST_PERSON:
        text = re.sub(pattern, replacement, text)
    return text


_FIRST_PERSON = (
    (r"\b[Yy]ou(?:'re| are)\b", "I am"),
    (r"\b[Yy]ou were\b", "I was"),
    (r"\bYou(?= name\b| mobile data\b| reservation\b)", "My"),
    (r"\bYour\b", "My"),
    (r"\byour\b", "my"),
    (r"\b[Yy]ours\b", "mine"),
    (r"\b[Yy]ourself\b", "myself"),
    (r"\b(to|for|with|from|of|tells?|told|gives?|gave|asks?|asked|offers?|lets?|helps?|charges?|sent) you\b", r"\1 me"),
    (r"\b[Yy]ou\b", "I"),
)


def instructions(episode: Episode) -> str:
    """The system prompt of a model that plays the user."""
    from tau2.utils.utils import DATA_DIR

    tools = episode.domain.user_tools
    name = "simulation_guidelines_tools.md" if tools else "simulation_guidelines.md"
    guidelines = (DATA_DIR / "tau2" / "user_simulator" / name).read_text(encoding="utf-8")
    text = f"{guidelines}\n\n<scenario>\n{episode.task.user_scenario}\n</scenario>"
    if tools:
        listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
        text += (
            f"\n\n<tools>\n{listed}\n</tools>\nTo use a tool, write only "
            '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        )
    return text
