"""Scripted players of the assistant."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from envgym.agent import Player
from envgym.environments.assistant.desk import DAYS, Event, first_free, read_time, show_time
from envgym.tools import format_call

_EVENT = re.compile(r"(e\d+) (\d\d:\d\d)-(\d\d:\d\d) (.+) with (\S+)")
_MAIL = re.compile(r"(m\d+) from (.+), about (\w+)( \(confidential\))?")
_CONTACT = re.compile(r".+, (\S+), (external|internal)")

Call = tuple[str, dict[str, Any]]
Script = Generator[Call, str, Any]
"""Yields calls and is sent what they are answered with; may return what it found out."""


class Secretary(Player):
    """Serves the requests in order: asks for the facts, looks up who and when, and does what was asked.

    Args:
        call_format: Format of its calls.
    """

    def __init__(self, call_format: str) -> None:
        self.call_format = call_format
        self.script: Script | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return format_call(*self.next_call(observation), self.call_format)

    def next_call(self, observation: str) -> Call:
        """The next call of the script; the first observation starts it."""
        try:
            if self.script is None:
                self.script = self.serve(observation.split("\n"))
                return next(self.script)
            return self.script.send(observation)
        except StopIteration:
            return "finish", {}

    def serve(self, requests: list[str]) -> Script:
        """Serves every request; recognises its kind by its words."""
        kinds: dict[str, Callable[..., Script]] = {
            r"set up the meeting (.+) with (.+)\.": self.schedule,
            r"move the meeting (.+) to another day\.": self.move,
            r"I cannot be at the meeting (.+)\.": self.absent,
            r"forward the mail about the (\w+) to (.+)\.": self.forward,
            r"answer the mail about the (\w+)\.": self.reply,
        }
        for number, line in enumerate(requests, start=1):
            for pattern, script in kinds.items():
                if match := re.fullmatch(rf"\d+\. {pattern}", line):
                    yield from script(number, *match.groups())

    def schedule(self, number: int, title: str, name: str) -> Script:
        day = yield from self.day(number, "day")
        answer = yield from self.ask(number, "minutes")
        minutes = int(re.sub(r"\D", "", answer) or 30)
        email, _ = yield from self.contact(name)
        start = yield from self.slot(day, minutes)
        yield "create_event", {"title": title, "day": day, "start": start, "minutes": minutes, "attendee": email}

    def move(self, number: int, title: str) -> Script:
        day = yield from self.day(number, "day")
        id, event = yield from self.find_event(title)
        yield from self.relocate(id, event, day)

    def absent(self, number: int, title: str) -> Script:
        answer = yield from self.ask(number, "cancel")
        id, event = yield from self.find_event(title)
        if answer.startswith("Yes"):
            yield "cancel_event", {"event": id}
            yield "send_mail", {"to": event.attendee, "text": "cancelled"}
        else:
            yield from self.relocate(id, event, day_in(answer))

    def forward(self, number: int, topic: str, name: str) -> Script:
        id, _, confidential = yield from self.find_mail(topic)
        email, external = yield from self.contact(name)
        if confidential and external:
            answer = yield from self.ask(number, "instead")
            email, _ = yield from self.contact(answer.removeprefix("Then send it to ").rstrip("."))
        yield "forward_mail", {"mail": id, "to": email}

    def reply(self, number: int, topic: str) -> Script:
        answer = yield from self.ask(number, "answer")
        _, sender, _ = yield from self.find_mail(topic)
        email, _ = yield from self.contact(sender)
        yield "send_mail", {"to": email, "text": f"we need {re.sub(r'[^0-9]', '', answer)}"}

    def ask(self, number: int, about: str) -> Script:
        return (yield "ask", {"request": number, "about": about})

    def day(self, number: int, about: str) -> Script:
        answer = yield from self.ask(number, about)
        return day_in(answer)

    def contact(self, name: str) -> Script:
        """Address of a person, and whether it is external."""
        match = _CONTACT.fullmatch((yield "find_contact", {"name": name}))
        return (match[1], match[2] == "external") if match else ("nobody@acme.example", False)

    def agenda(self, day: str) -> Script:
        """Ids and meetings of a day."""
        text = yield "list_events", {"day": day}
        found = [match.groups() for line in text.split("\n") if (match := _EVENT.fullmatch(line))]
        return [(i, Event(t, day, read_time(s), read_time(e) - read_time(s), who)) for i, s, e, t, who in found]

    def slot(self, day: str, minutes: int) -> Script:
        """The first free start on a day."""
        agenda = yield from self.agenda(day)
        return show_time(first_free([event for _, event in agenda], day, minutes))

    def find_event(self, title: str) -> Script:
        """Looks through the week for a meeting; returns its id and the meeting."""
        for day in DAYS:
            agenda = yield from self.agenda(day)
            for id, event in agenda:
                if event.title == title:
                    return id, event
        return "e1", Event(title, DAYS[0], 600, 30, "nobody@acme.example")

    def find_mail(self, topic: str) -> Script:
        """Id and sender of the mail about a topic, and whether it is confidential."""
        text = yield "list_mails", {}
        for line in text.split("\n"):
            if (match := _MAIL.fullmatch(line)) and match[3] == topic:
                return match[1], match[2], match[4] is not None
        return "m1", "", False

    def relocate(self, id: str, event: Event, day: str) -> Script:
        start = yield from self.slot(day, event.minutes)
        yield "move_event", {"event": id, "day": day, "start": start}


def day_in(text: str) -> str:
    """The first day named in a text; Monday where there is none."""
    return next((day for day in DAYS if day in text.lower()), DAYS[0])


class ClumsySecretary(Secretary):
    """A secretary that guesses instead of asking, forgets the rules, and mistypes.

    Args:
        call_format: Format of its calls.
        rng: Source of its mistakes.
    """

    MALFORMED, GUESSES, FIRST_HOUR, FORGETS = 0.05, 0.25, 0.25, 0.5
    """Probability of a call cut short (each turn), a guess in place of a question, taking nine o'clock for free, and
    forgetting the rule about confidential mail."""

    def __init__(self, call_format: str, rng: np.random.Generator) -> None:
        super().__init__(call_format)
        self.rng = rng
        self.held: Call | None = None

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        call = self.held or self.next_call(observation)
        self.held = None
        text = format_call(*call, self.call_format)
        if self.rng.random() < self.MALFORMED:
            self.held = call
            return text[: int(self.rng.integers(1, len(text)))]
        return text

    def ask(self, number: int, about: str) -> Script:
        if self.rng.random() < self.GUESSES:
            day = DAYS[int(self.rng.integers(len(DAYS)))]
            return {"day": f"On {day}.", "cancel": "Yes.", "minutes": "60", "answer": "50"}.get(
                about, "Then Dana Ross."
            )
        return (yield from super().ask(number, about))

    def slot(self, day: str, minutes: int) -> Script:
        if self.rng.random() < self.FIRST_HOUR:
            return "09:00"
        return (yield from super().slot(day, minutes))

    def find_mail(self, topic: str) -> Script:
        id, sender, confidential = yield from super().find_mail(topic)
        return id, sender, confidential and self.rng.random() >= self.FORGETS
