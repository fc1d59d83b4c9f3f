"""A morning at the desk: what is on it, what the user asks for, what they add when asked, and how it must end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from envgym.environments.assistant.desk import DAYS, GRID, OPENS, Contact, Desk, Event, Mail, Sent, first_free

NAMES = ("Dana Ross", "Kai Lund", "Mira Voss", "Tom Hale", "Ines Roy", "Jon Petri", "Lea Stone", "Omar Diaz")
INSIDE, OUTSIDE = "acme.example", "borealis.example"
TITLES = ("budget", "launch", "hiring", "roadmap", "audit", "training", "design", "security", "travel", "pricing")
NEW_TITLES = ("kickoff", "review", "interview", "planning", "briefing")
TOPICS = ("contract", "invoice", "salary", "survey", "warranty", "lease")
KINDS = ("schedule", "move", "absent", "forward", "reply")
ALIASES = {
    "day": ("day", "when", "date"),
    "minutes": ("minute", "long", "length", "duration"),
    "cancel": ("cancel", "move"),
    "answer": ("answer", "say", "reply"),
    "instead": ("instead", "else", "other", "whom"),
}
"""Words by which the user recognises what they are asked about."""


@dataclass
class Request:
    """One thing the user asks for.

    Attributes:
        text: What they say.
        facts: What they add when asked, by what they are asked about; all of it is needed.
        consent: Id of the meeting that may be cancelled once "cancel" has been asked about; empty where there is none.
    """

    text: str
    facts: dict[str, str] = field(default_factory=dict)
    consent: str = ""

    def reply(self, about: str) -> tuple[str, list[str]]:
        """The user's words to a question, and the facts they reveal."""
        asked = about.lower()[:200]
        known = [fact for fact in self.facts if any(word in asked for word in ALIASES[fact])]
        return " ".join(self.facts[fact] for fact in known) or "I have nothing to add.", known


@dataclass
class Scenario:
    """What is on the desk, what is asked for, and what the desk must look like in the end.

    Attributes:
        desk: The desk as it is found.
        requests: What the user asks for, in order.
        events: The meetings there must be in the end.
        mails: The mails that must be sent: `forwarded` as it stands, `body` as a word that must be in it.
    """

    desk: Desk
    requests: list[Request]
    events: Counter[Event]
    mails: list[Sent]


def draw_scenario(number: int, rng: np.random.Generator) -> Scenario:
    """A scenario with some requests of different kinds, none of which touches a day that another depends on.

    Args:
        number: Number of requests; 1 to 3.
        rng: Source of the scenario.
    """
    builder = _Builder(number, rng)
    for kind in rng.permutation(len(KINDS))[:number]:
        getattr(builder, f"add_{KINDS[kind]}")()
    return Scenario(builder.desk, builder.requests, Counter(builder.final.values()), builder.mails)


class _Builder:
    """Draws a desk, and adds requests to it.

    The week is split: meetings are moved to, or entered on, days that nothing is moved away from, and each such day is
    used once. So the order in which requests are served does not change where a meeting must go.
    """

    def __init__(self, number: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.desk = Desk()
        self.requests: list[Request] = []
        self.mails: list[Sent] = []
        days = [DAYS[i] for i in rng.permutation(len(DAYS))]
        self.targets, self.sources = days[:number], days[number:]
        for i, name in enumerate(self.shuffled(NAMES)):
            email = f"{name.split()[0].lower()}@{OUTSIDE if i >= 5 else INSIDE}"
            self.desk.contacts[email] = Contact(name, email, i >= 5)
        titles = self.shuffled(TITLES)
        for day in DAYS:
            for _ in range(int(rng.integers(1, 3))):
                minutes, start = int(rng.choice([30, 60])), OPENS + GRID * int(rng.integers(0, 6))
                event = Event(titles[-1], day, start, minutes, self.person().email)
                if not any(event.overlaps(other) for other in self.desk.events.values()):
                    titles.pop()
                    self.desk.add_event(event)
        topics = self.shuffled(TOPICS)
        for i in range(4):
            sender = self.person()
            body = f"dear all, the {topics[i]} is number {int(rng.integers(100, 1000))}."
            self.desk.mails[f"m{i + 1}"] = Mail(sender.name, topics[i], body, bool(rng.random() < 0.5))
        self.final = dict(self.desk.events)
        self.movable = [i for i, event in self.desk.events.items() if event.day in self.sources]
        self.unused = list(self.desk.mails)

    def shuffled(self, words: tuple[str, ...]) -> list[str]:
        return [words[i] for i in self.rng.permutation(len(words))]

    def person(self, *, external: bool | None = None) -> Contact:
        people = [c for c in self.desk.contacts.values() if external in (None, c.external)]
        return people[int(self.rng.integers(len(people)))]

    def take(self, ids: list[str]) -> str:
        return ids.pop(int(self.rng.integers(len(ids))))

    def add_schedule(self) -> None:
        title, person, day = self.shuffled(NEW_TITLES)[0], self.person(), self.targets.pop()
        minutes = int(self.rng.choice([30, 60, 90]))
        start = first_free(list(self.final.values()), day, minutes)
        self.final["new"] = Event(title, day, start, minutes, person.email)
        facts = {"day": f"On {day}.", "minutes": f"It takes {minutes} minutes."}
        self.requests.append(Request(f"set up the meeting {title} with {person.name}.", facts))

    def add_move(self) -> None:
        id, day = self.take(self.movable), self.targets.pop()
        self.relocate(id, day)
        self.requests.append(
            Request(f"move the meeting {self.desk.events[id].title} to another day.", {"day": f"To {day}."})
        )

    def add_absent(self) -> None:
        id, day = self.take(self.movable), self.targets.pop()
        event = self.desk.events[id]
        text = f"I cannot be at the meeting {event.title}."
        if self.rng.random() < 0.5:
            self.relocate(id, day)
            self.requests.append(Request(text, {"cancel": f"No, move it to {day}."}))
            return
        del self.final[id]
        self.mails.append(Sent(event.attendee, body="cancelled"))
        said = "Yes, cancel it, and mail who it is with the word cancelled."
        self.requests.append(Request(text, {"cancel": said}, consent=id))

    def add_forward(self) -> None:
        id = self.take(self.unused)
        mail, person = self.desk.mails[id], self.person(external=bool(self.rng.random() < 0.6))
        facts = {}
        receiver = person
        if mail.confidential and person.external:
            receiver = self.person(external=False)
            facts = {"instead": f"Then send it to {receiver.name}."}
        self.mails.append(Sent(receiver.email, forwarded=id))
        self.requests.append(Request(f"forward the mail about the {mail.topic} to {person.name}.", facts))

    def add_reply(self) -> None:
        mail = self.desk.mails[self.take(self.unused)]
        number = int(self.rng.integers(10, 100))
        self.mails.append(Sent(self.desk.contact_named(mail.sender).email, body=str(number)))
        text = f"answer the mail about the {mail.topic}."
        self.requests.append(Request(text, {"answer": f"Say that we need {number}."}))

    def relocate(self, id: str, day: str) -> None:
        event = self.final[id]
        start = first_free(list(self.final.values()), day, event.minutes)
        self.final[id] = Event(event.title, day, start, event.minutes, event.attendee)
