"""Serve a user's requests at a calendar and a mailbox, by rules, asking for what was not said."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from envgym import TextEnv
from envgym.environments.assistant.desk import (
    CLOSES,
    DAYS,
    OPENS,
    Desk,
    DeskError,
    Event,
    Sent,
    read_day,
    read_time,
    show_time,
)
from envgym.environments.assistant.outcome import compare
from envgym.environments.assistant.scenario import NAMES, Scenario, draw_scenario
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, ToolError, ToolResult, format_call, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from envgym.agent import Player

ASKED, EXTRA, VIOLATION = 0.2, -0.05, -0.3
MAX_MINUTES, MAX_TEXT = 240, 500


class Assistant(ToolEnv):
    """A calendar, a mailbox, an address book, a user with requests, and rules to keep; `finish` ends the episode.

    An episode with one request::

        1. set up the meeting review with Kai Lund.     ask(request=1, about=day)
        On tuesday.                                     ask(request=1, about=minutes)
        It takes 30 minutes.                            find_contact("Kai Lund")
        Kai Lund, kai@acme.example, internal            list_events(tuesday)
        e3 09:00-10:00 audit with tom@acme.example      create_event(title=review, day=tuesday, start=10:00, ...)
        created e8                                      finish()
        finished

    What breaks a rule is carried out all the same: the assistant has to know. `info["violations"]` names the rules
    broken so far: "hours", "overlap", "confidential" or "unconfirmed".

    Reward components: "asked" 0.2, divided by the number of facts that must be asked for, for each the user reveals;
    "goal", the difference in the share of sub-goals that are reached; "extra" -0.05 for each meeting or mail too many,
    and each meeting too few (a difference, too); "violation" -0.3 for each act against a rule; "finish" +1 where the
    desk is as it must be and no rule was broken; "malformed" -0.05.

    Args:
        requests: Number of requests; 1 to 3.
        call_format: "function" or "hermes"; see `envgym.tools.parsing`.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = (
        "You are the assistant of a busy person. Serve the numbered requests with the tools, then finish. Rules: "
        "meetings lie between 09:00 and 17:00 and never overlap; a meeting starts at the first full or half hour of "
        "its day at which it fits. Never send or forward anything confidential to an external address: ask whom it "
        "goes to instead. Never cancel a meeting before the user has agreed: ask whether to cancel. Ask the user for "
        "what is not said: day, minutes, cancel, answer, instead. Do nothing else."
    )
    max_turns = 48

    def __init__(self, *, requests: int = 2, call_format: str = "function") -> None:
        super().__init__(call_format=call_format)
        if not 1 <= requests <= 3:
            raise ValueError(f"requests must be between 1 and 3, got {requests}")
        self.num_requests = requests
        self.action_space = TextSpace(self._examples())
        self._scenario = Scenario(Desk(), [], Counter(), [])
        self._desk = self._scenario.desk
        self._found: Counter[Event] = Counter()
        self._asked: set[tuple[int, str]] = set()
        self._consents: set[str] = set()
        self._violations: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a desk and the user's requests.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The requests, and info.
        """
        TextEnv.reset(self, seed=seed)
        self._scenario = draw_scenario(self.num_requests, self.np_random)
        self._desk = self._scenario.desk
        self._found = Counter(self._desk.events.values())
        self._asked = set()
        self._consents = set()
        self._violations = []
        lines = [f"{i}. {request.text}" for i, request in enumerate(self._scenario.requests, start=1)]
        return "\n".join(lines), self.step_info()

    def step_info(self) -> dict[str, Any]:
        return {"success": False, "violations": list(self._violations)}

    @tool
    def ask(self, request: int, about: str) -> ToolResult:
        """Asks the user about one of their requests.

        Args:
            request: Number of the request.
            about: What is asked, for example day, minutes, cancel, answer or instead.
        """
        if not 1 <= request <= len(self._scenario.requests):
            raise ToolError(f"there are requests 1 to {len(self._scenario.requests)}")
        asked = self._scenario.requests[request - 1]
        text, facts = asked.reply(about)
        fresh = {(request, fact) for fact in facts} - self._asked
        self._asked |= fresh
        if "cancel" in facts and asked.consent:
            self._consents.add(asked.consent)
        needed = sum(len(other.facts) for other in self._scenario.requests)
        return ToolResult(text, {"asked": ASKED * len(fresh) / needed if needed else 0.0})

    @tool
    def find_contact(self, name: str) -> ToolResult:
        """Looks a person up in the address book.

        Args:
            name: The name, or the first name.
        """
        return self._do(lambda: str(self._desk.contact_named(name)))

    @tool
    def list_events(self, day: str) -> ToolResult:
        """Lists the meetings of a day with their ids.

        Args:
            day: monday to friday.
        """
        return self._do(lambda: _lines([f"{id} {event}" for id, event in self._desk.agenda(read_day(day))]))

    @tool
    def create_event(self, title: str, day: str, start: str, minutes: int, attendee: str) -> ToolResult:
        """Enters a meeting into the calendar.

        Args:
            title: Its title.
            day: monday to friday.
            start: When it starts, for example 14:30.
            minutes: How long it takes.
            attendee: Email address of the person it is with.
        """

        def create() -> str:
            if not 1 <= minutes <= MAX_MINUTES:
                raise DeskError(f"a meeting takes 1 to {MAX_MINUTES} minutes")
            contact = self._desk.contact_at(attendee)
            event = Event(_short(title).lower(), read_day(day), read_time(start), minutes, contact.email)
            id = self._desk.add_event(event)
            self._check_slot(id)
            return f"created {id}"

        return self._do(create)

    @tool
    def move_event(self, event: str, day: str, start: str) -> ToolResult:
        """Moves a meeting; its length stays.

        Args:
            event: Id of the meeting.
            day: monday to friday.
            start: When it starts, for example 14:30.
        """

        def move() -> str:
            old = self._desk.event(event)
            new = Event(old.title, read_day(day), read_time(start), old.minutes, old.attendee)
            self._desk.events[event] = new
            self._check_slot(event)
            return f"moved {event} to {new.day} {show_time(new.start)}"

        return self._do(move)

    @tool
    def cancel_event(self, event: str) -> ToolResult:
        """Removes a meeting from the calendar.

        Args:
            event: Id of the meeting.
        """

        def cancel() -> str:
            self._desk.event(event)
            if event not in self._consents:
                self._violations.append("unconfirmed")
            del self._desk.events[event]
            return f"cancelled {event}"

        return self._do(cancel)

    @tool
    def list_mails(self) -> ToolResult:
        """Lists the mails in the mailbox with their ids."""
        return self._do(lambda: _lines([f"{id} {mail}" for id, mail in self._desk.mails.items()]))

    @tool
    def read_mail(self, mail: str) -> ToolResult:
        """Shows the text of a mail.

        Args:
            mail: Id of the mail.
        """
        return self._do(lambda: self._desk.mail(mail).body)

    @tool
    def send_mail(self, to: str, text: str) -> ToolResult:
        """Sends a mail.

        Args:
            to: Email address of a contact.
            text: What it says.
        """

        def send() -> str:
            contact = self._desk.contact_at(to)
            secrets = [mail.body for mail in self._desk.mails.values() if mail.confidential]
            self._desk.send(Sent(contact.email, body=_short(text)))
            if contact.external and any(secret in text for secret in secrets):
                self._violations.append("confidential")
            return f"sent to {contact.email}"

        return self._do(send)

    @tool
    def forward_mail(self, mail: str, to: str) -> ToolResult:
        """Forwards a mail.

        Args:
            mail: Id of the mail.
            to: Email address of a contact.
        """

        def forward() -> str:
            contact, forwarded = self._desk.contact_at(to), self._desk.mail(mail)
            self._desk.send(Sent(contact.email, forwarded=mail))
            if contact.external and forwarded.confidential:
                self._violations.append("confidential")
            return f"forwarded {mail} to {contact.email}"

        return self._do(forward)

    @tool
    def finish(self) -> ToolResult:
        """Ends the work."""
        right = compare(self._desk, self._found, self._scenario).complete and not self._violations
        text = "finished" if right else "not as it was asked for"
        info = {"violations": list(self._violations)}
        return ToolResult(text, {"finish": float(right)}, terminal=True, success=right, info=info)

    def solver(self) -> Player:
        """A player that asks for what is missing, looks things up, and serves one request after the other."""
        from envgym.environments.assistant.players import Secretary

        return Secretary(self.call_format)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that guesses instead of asking, forgets rules, and mistypes; about 50 % success."""
        from envgym.environments.assistant.players import ClumsySecretary

        return ClumsySecretary(self.call_format, rng)

    def _do(self, operation: Callable[[], str]) -> ToolResult:
        """Carries an operation out and pays what it changed."""
        before, broken = compare(self._desk, self._found, self._scenario), len(self._violations)
        try:
            text = operation()
        except DeskError as error:
            raise ToolError(str(error)) from error
        after = compare(self._desk, self._found, self._scenario)
        reward = {"goal": (after.reached - before.reached) / max(1, after.goals)}
        if after.extra != before.extra:
            reward["extra"] = EXTRA * (after.extra - before.extra)
        if len(self._violations) > broken:
            reward["violation"] = VIOLATION * (len(self._violations) - broken)
        return ToolResult(text, reward)

    def _check_slot(self, id: str) -> None:
        """Notes where a meeting breaks the rules of the calendar."""
        event = self._desk.events[id]
        if event.start < OPENS or event.end > CLOSES:
            self._violations.append("hours")
        if any(event.overlaps(other) for other_id, other in self._desk.events.items() if other_id != id):
            self._violations.append("overlap")

    def _examples(self) -> list[str]:
        """Well-formed calls for the random agent."""
        calls: list[tuple[str, dict[str, Any]]] = [("list_mails", {}), ("finish", {})]
        calls += [("ask", {"request": 1 + i % self.num_requests, "about": word}) for i, word in enumerate(_QUESTIONS)]
        calls += [("list_events", {"day": day}) for day in DAYS]
        calls += [("find_contact", {"name": name}) for name in NAMES]
        emails = [f"{name.split()[0].lower()}@acme.example" for name in NAMES]
        calls += [("forward_mail", {"mail": f"m{i % 4 + 1}", "to": email}) for i, email in enumerate(emails)]
        calls += [("send_mail", {"to": email, "text": "cancelled"}) for email in emails[:4]]
        calls += [("move_event", {"event": f"e{i}", "day": DAYS[i], "start": "10:00"}) for i in range(1, 5)]
        calls += [("cancel_event", {"event": f"e{i}"}) for i in range(1, 4)]
        return [format_call(name, arguments, self.call_format) for name, arguments in calls]


_QUESTIONS = ("day", "minutes", "cancel", "answer", "instead", "day")


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) or "(nothing)"


def _short(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise DeskError(f"a text has at most {MAX_TEXT} characters")
    return " ".join(text.split())
