"""How far the desk is from what it must look like."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from envgym.environments.assistant.desk import Desk, Event, Sent
from envgym.environments.assistant.scenario import Scenario

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Outcome:
    """The state of the desk, compared with the scenario.

    Attributes:
        reached: Number of sub-goals that are reached: meetings entered, meetings gone from where they were, mails sent.
        goals: Number of sub-goals.
        extra: Meetings and mails that nobody asked for.
    """

    reached: int
    goals: int
    extra: int

    @property
    def complete(self) -> bool:
        """Whether the desk is exactly as it must be."""
        return self.reached == self.goals and self.extra == 0


def compare(desk: Desk, found: Counter[Event], scenario: Scenario) -> Outcome:
    """The outcome so far.

    Args:
        desk: The desk as it is.
        found: The meetings there were at first.
        scenario: How it must be.
    """
    now, wanted = Counter(desk.events.values()), scenario.events
    to_add, to_remove = wanted - found, found - wanted
    added, removed = to_add & now, to_remove - (now & to_remove)
    matched, unmatched = _match(desk.sent, scenario.mails)
    reached = added.total() + removed.total() + matched
    goals = to_add.total() + to_remove.total() + len(scenario.mails)
    missing = (wanted & found) - now
    strange = now - wanted - to_remove
    return Outcome(reached, goals, strange.total() + missing.total() + unmatched)


def _match(sent: list[Sent], wanted: list[Sent]) -> tuple[int, int]:
    """How many of the wanted mails were sent, and how many mails were sent besides."""
    open_ones = list(wanted)
    unmatched = 0
    for mail in sent:
        for other in open_ones:
            if mail.to == other.to and mail.forwarded == other.forwarded and _says(mail.body, other.body):
                open_ones.remove(other)
                break
        else:
            unmatched += 1
    return len(wanted) - len(open_ones), unmatched


def _says(body: str, word: str) -> bool:
    return not word or word in _WORD.findall(body.lower())
