"""The desk of the assistant: a calendar of one week, a mailbox and an address book."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
OPENS, CLOSES, GRID = 9 * 60, 17 * 60, 30
"""Working hours and the grid of meetings, in minutes (of the day)."""
MAX_EVENTS, MAX_SENT = 60, 40
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


class DeskError(Exception):
    """An operation cannot be carried out; the message says why. Nothing has changed."""


@dataclass(frozen=True)
class Contact:
    """A person in the address book."""

    name: str
    email: str
    external: bool

    def __str__(self) -> str:
        return f"{self.name}, {self.email}, {'external' if self.external else 'internal'}"


@dataclass(frozen=True)
class Event:
    """A meeting: its start is in minutes of the day."""

    title: str
    day: str
    start: int
    minutes: int
    attendee: str

    @property
    def end(self) -> int:
        """Minute of the day at which it ends."""
        return self.start + self.minutes

    def overlaps(self, other: Event) -> bool:
        """Whether two meetings share a minute."""
        return self.day == other.day and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{show_time(self.start)}-{show_time(self.end)} {self.title} with {self.attendee}"


@dataclass(frozen=True)
class Mail:
    """A mail in the mailbox."""

    sender: str
    topic: str
    body: str
    confidential: bool

    def __str__(self) -> str:
        return f"from {self.sender}, about {self.topic}{' (confidential)' if self.confidential else ''}"


@dataclass(frozen=True)
class Sent:
    """A mail that was sent: `forwarded` is the id of the mail it passes on, or empty."""

    to: str
    body: str = ""
    forwarded: str = ""


@dataclass
class Desk:
    """Everything the assistant can see and change, by id where things have one."""

    contacts: dict[str, Contact] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    mails: dict[str, Mail] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    num_created: int = 0

    def contact_named(self, name: str) -> Contact:
        """The contact with this name, or with this first name.

        Raises:
            DeskError: There is none.
        """
        wanted = name.strip().casefold()
        for contact in self.contacts.values():
            if wanted in (contact.name.casefold(), contact.name.split()[0].casefold()):
                return contact
        raise DeskError("no such contact")

    def contact_at(self, email: str) -> Contact:
        """The contact with this address.

        Raises:
            DeskError: There is none.
        """
        if email not in self.contacts:
            raise DeskError("no contact has that address; look it up with find_contact")
        return self.contacts[email]

    def event(self, id: str) -> Event:
        """The meeting with this id.

        Raises:
            DeskError: There is none.
        """
        if id not in self.events:
            raise DeskError("no such meeting; list_events shows the ids")
        return self.events[id]

    def mail(self, id: str) -> Mail:
        """The mail with this id.

        Raises:
            DeskError: There is none.
        """
        if id not in self.mails:
            raise DeskError("no such mail; list_mails shows the ids")
        return self.mails[id]

    def agenda(self, day: str) -> list[tuple[str, Event]]:
        """Ids and meetings of a day, by their start."""
        return sorted(
            ((i, e) for i, e in self.events.items() if e.day == day), key=lambda pair: (pair[1].start, pair[0])
        )

    def add_event(self, event: Event) -> str:
        """Enters a meeting; returns its id.

        Raises:
            DeskError: The calendar is full.
        """
        if len(self.events) >= MAX_EVENTS:
            raise DeskError("the calendar is full")
        self.num_created += 1
        id = f"e{self.num_created}"
        self.events[id] = event
        return id

    def send(self, mail: Sent) -> None:
        """Sends a mail.

        Raises:
            DeskError: Too many have been sent.
        """
        if len(self.sent) >= MAX_SENT:
            raise DeskError("too many mails have been sent")
        self.sent.append(mail)


def first_free(events: list[Event], day: str, minutes: int) -> int:
    """The first start on the grid at which a meeting fits into the working hours of a day, between those there are.

    Args:
        events: Meetings; those of other days do not matter.
        day: The day.
        minutes: Length of the meeting.

    Raises:
        DeskError: There is no room.
    """
    for start in range(OPENS, CLOSES - minutes + 1, GRID):
        if not any(Event("", day, start, minutes, "").overlaps(event) for event in events):
            return start
    raise DeskError("there is no room on that day")


def read_day(text: str) -> str:
    """A day of the week, also from its first three letters.

    Raises:
        DeskError: It is none.
    """
    word = text.strip().lower() if len(text) < 32 else ""
    for day in DAYS:
        if word in (day, day[:3]):
            return day
    raise DeskError(f"a day is one of {', '.join(DAYS)}")


def read_time(text: str) -> int:
    """The minute of the day of a time such as 14:30.

    Raises:
        DeskError: It is none.
    """
    match = _TIME.fullmatch(text.strip()) if len(text) < 32 else None
    if match is None:
        raise DeskError("a time is written like 14:30")
    return 60 * int(match[1]) + int(match[2])


def show_time(minute: int) -> str:
    """A minute of the day as 14:30."""
    return f"{minute // 60:02}:{minute % 60:02}"
