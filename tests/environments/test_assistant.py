"""The assistant: the calendar by hand, rules that can be broken, and a user who says what they are asked."""

import pickle
from collections import Counter

import numpy as np
import pytest
from episodes import demonstrator, play

import envgym
from envgym.environments.assistant import Assistant
from envgym.environments.assistant.desk import (
    Contact,
    Desk,
    DeskError,
    Event,
    Mail,
    Sent,
    first_free,
    read_day,
    read_time,
)
from envgym.environments.assistant.scenario import KINDS, Request, Scenario, draw_scenario
from envgym.tools import format_call

KAI, EVA = "kai@acme.example", "eva@borealis.example"
AUDIT, TRAVEL = Event("audit", "monday", 540, 60, KAI), Event("travel", "tuesday", 600, 30, EVA)
REVIEW = Event("review", "monday", 600, 30, EVA)


def start(requests=(), events=(AUDIT, TRAVEL), mails=(), **kwargs):
    """An episode at this desk that must end with these meetings and mails sent."""
    env = Assistant(**kwargs)
    env.reset(seed=0)
    desk = Desk(
        contacts={KAI: Contact("Kai Lund", KAI, False), EVA: Contact("Eva Roy", EVA, True)},
        events={"e1": AUDIT, "e2": TRAVEL},
        mails={
            "m1": Mail("Eva Roy", "lease", "the lease is 7.", False),
            "m2": Mail("Kai Lund", "salary", "it is 900.", True),
        },
        num_created=2,
    )
    env._scenario = Scenario(desk, list(requests), Counter(events), list(mails))
    env._desk, env._found = desk, Counter(desk.events.values())
    return env


def call(env, name, /, **arguments):
    return env.step(format_call(name, arguments, env.call_format))


def create(env, **changes):
    arguments = {"title": "review", "day": "monday", "start": "10:00", "minutes": 30, "attendee": EVA} | changes
    return call(env, "create_event", **arguments)


@pytest.mark.parametrize(
    ("taken", "minutes", "free"),
    [
        *(([], 30, 540), ([(540, 60)], 30, 600), ([(540, 60), (615, 10)], 30, 630)),
        *(([(540, 60), (660, 30)], 60, 600), ([(540, 60), (660, 30)], 90, 690), ([(570, 420)], 30, 540)),
        *(([(570, 420)], 60, None), ([(540, 450)], 30, 990), ([(540, 480)], 30, None)),
    ],
)
def test_the_first_free_slot_by_hand(taken, minutes, free):
    events = [Event("busy", "monday", start, length, KAI) for start, length in taken]
    events.append(Event("another day", "tuesday", 540, 480, KAI))
    if free is None:
        with pytest.raises(DeskError, match="no room"):
            first_free(events, "monday", minutes)
    else:
        assert first_free(events, "monday", minutes) == free


def test_days_and_times_are_read():
    assert read_day(" Mon\n") == "monday" and read_day("friday") == "friday"
    assert read_time("9:05") == 545 and read_time("16:30") == 990
    for wrong in ("", "someday", "saturday", "m" * 100_000):
        with pytest.raises(DeskError):
            read_day(wrong)
    for wrong in ("", "9", "24:00", "9:60", "-1:00", "٩:٠٠"):
        with pytest.raises(DeskError):
            read_time(wrong)


def test_the_rewards_of_a_clean_episode():
    facts = {"day": "On monday.", "minutes": "It takes 30 minutes."}
    env = start([Request("set up the meeting review with Eva Roy.", facts)], events=(AUDIT, TRAVEL, REVIEW))
    step = call(env, "ask", request=1, about="day")
    assert step.observation == "On monday." and step.info["reward_components"] == {"asked": 0.1}
    assert call(env, "ask", request=1, about="what day?").info["reward_components"] == {"asked": 0.0}
    step = call(env, "ask", request=1, about="how long is it, and when?")
    assert step.observation == "On monday. It takes 30 minutes." and step.info["reward_components"] == {"asked": 0.1}
    assert call(env, "ask", request=1, about="the weather").observation == "I have nothing to add."
    step = call(env, "find_contact", name="eva")
    assert step.observation == f"Eva Roy, {EVA}, external" and step.info["reward_components"] == {"goal": 0.0}
    assert call(env, "list_events", day="mon").observation == f"e1 09:00-10:00 audit with {KAI}"
    step = create(env, title="Review")
    assert step.observation == "created e3" and step.info["reward_components"] == {"goal": 1.0}
    assert step.info["success"] is False and step.info["violations"] == []
    step = env.step("finish()")
    assert step.terminated and step.info["success"] is True and step.info["reward_components"] == {"finish": 1.0}


@pytest.mark.parametrize(
    ("changes", "violations"),
    [
        *(({"start": "08:30"}, ["hours"]), ({"start": "16:31"}, ["hours"]), ({"start": "16:30"}, [])),
        *(({"start": "09:30"}, ["overlap"]), ({"start": "08:30", "minutes": 60}, ["hours", "overlap"])),
        ({"start": "08:59", "minutes": 240}, ["hours", "overlap"]),
    ],
)
def test_rules_of_the_calendar_can_be_broken_and_cost(changes, violations):
    step = create(start(events=(AUDIT, TRAVEL, REVIEW)), **changes)
    assert step.info["violations"] == violations and step.observation == "created e3"
    components = {"goal": 0.0, "extra": -0.05} | ({"violation": -0.3 * len(violations)} if violations else {})
    assert step.info["reward_components"] == pytest.approx(components)


def test_a_meeting_may_be_moved_over_itself_but_not_over_another():
    moved = Event("travel", "tuesday", 630, 30, EVA)
    env = start(events=(AUDIT, moved))
    step = call(env, "move_event", event="e2", day="tuesday", start="10:15")
    assert step.info["violations"] == [] and step.info["reward_components"] == {"goal": 0.5, "extra": -0.05}
    step = call(env, "move_event", event="e2", day="monday", start="09:30")
    assert step.info["violations"] == ["overlap"] and step.info["reward_components"] == {"goal": 0.0, "violation": -0.3}
    step = call(env, "move_event", event="e2", day="tuesday", start="10:30")
    assert step.info["reward_components"] == {"goal": 0.5, "extra": pytest.approx(0.05)}
    step = env.step("finish()")  # everything is in its place, but a rule was broken on the way
    assert step.terminated and step.info["success"] is False and step.info["reward_components"] == {"finish": 0.0}
    assert step.info["violations"] == ["overlap"]


def test_cancelling_needs_the_users_consent():
    asked = Request("I cannot be at the meeting audit.", {"cancel": "Yes, cancel it."}, consent="e1")
    env = start([asked], events=(TRAVEL,), mails=[Sent(KAI, body="cancelled")])
    call(env, "ask", request=1, about="cancel")
    step = call(env, "cancel_event", event="e1")
    assert step.info["reward_components"] == {"goal": 0.5} and step.info["violations"] == []
    assert call(env, "send_mail", to=KAI, text="It is Cancelled, sorry.").info["reward_components"] == {"goal": 0.5}
    assert env.step("finish()").info["success"] is True
    env = start([asked], events=(TRAVEL,))
    step = call(env, "cancel_event", event="e1")
    assert step.info["reward_components"] == {"goal": 1.0, "violation": -0.3}
    assert step.info["violations"] == ["unconfirmed"] and env.step("finish()").info["success"] is False


def test_a_no_is_no_consent():
    env = start([Request("I cannot be at the meeting audit.", {"cancel": "No, move it to friday."})])
    call(env, "ask", request=1, about="cancel")
    env._scenario.events[REVIEW] += 1
    assert call(env, "cancel_event", event="e1").info["violations"] == ["unconfirmed"]


def test_confidential_mail_must_not_leave_the_house():
    env = start(mails=[Sent(KAI, forwarded="m2"), Sent(EVA, forwarded="m1")])
    assert call(env, "forward_mail", mail="m1", to=EVA).info["reward_components"] == {"goal": 0.5}
    step = call(env, "forward_mail", mail="m2", to=EVA)
    assert step.info["reward_components"] == {"goal": 0.0, "extra": -0.05, "violation": -0.3}
    assert step.info["violations"] == ["confidential"]
    assert call(env, "forward_mail", mail="m2", to=KAI).info["reward_components"] == {"goal": 0.5}
    copied = call(env, "send_mail", to=EVA, text="you asked: it is 900. bye").info["reward_components"]
    assert copied == {"goal": 0.0, "extra": -0.05, "violation": -0.3}
    inside = call(env, "send_mail", to=KAI, text="you asked: it is 900. bye").info["reward_components"]
    assert inside == {"goal": 0.0, "extra": -0.05}


def test_an_answer_must_hold_the_word_and_go_out_once():
    env = start(mails=[Sent(EVA, body="47")])
    assert call(env, "send_mail", to=EVA, text="we need 470").info["reward_components"] == {"goal": 0.0, "extra": -0.05}
    assert call(env, "send_mail", to=KAI, text="we need 47").info["reward_components"] == {"goal": 0.0, "extra": -0.05}
    assert call(env, "send_mail", to=EVA, text="We need 47.").info["reward_components"] == {"goal": 1.0}
    assert call(env, "send_mail", to=EVA, text="we need 47").info["reward_components"] == {"goal": 0.0, "extra": -0.05}
    assert env.step("finish()").info["success"] is False


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ask", {"request": 2, "about": "day"}, "there are requests 1 to 1"),
        ("find_contact", {"name": "Nobody"}, "no such contact"),
        ("list_events", {"day": "sunday"}, "a day is one of"),
        ("move_event", {"event": "e9", "day": "monday", "start": "10:00"}, "no such meeting"),
        ("move_event", {"event": "e1", "day": "monday", "start": "ten"}, "a time is written"),
        ("cancel_event", {"event": "e9"}, "no such meeting"),
        ("read_mail", {"mail": "m9"}, "no such mail"),
        ("forward_mail", {"mail": "m1", "to": "x@y.example"}, "no contact has that address"),
        ("send_mail", {"to": KAI, "text": "x" * 501}, "at most 500 characters"),
    ],
)
def test_what_cannot_be_carried_out_is_answered_and_changes_nothing(name, arguments, message):
    env = start([Request("answer.", {})])
    before = pickle.dumps(env._desk)
    step = call(env, name, **arguments)
    assert message in step.observation and step.info["action_error"] == step.observation and step.reward == 0.0
    assert pickle.dumps(env._desk) == before and step.info["violations"] == []
    assert "1 to 240" in create(env, minutes=0).observation and "no contact" in create(env, attendee="x").observation


def test_the_calendar_and_the_outbox_do_not_grow_without_end():
    env = start(events=(AUDIT,))
    texts = [create(env, start="12:00").observation for _ in range(70)]
    assert texts[-1] == "the calendar is full" and len(env._desk.events) == 60
    num_violations = len(env._violations)
    create(env, start="12:00")
    assert len(env._violations) == num_violations
    env = start(mails=[Sent(KAI, body="x")])
    texts = [call(env, "send_mail", to=EVA, text="y").observation for _ in range(50)]
    assert texts[-1] == "too many mails have been sent"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_scenarios_are_whole(number):
    for seed in range(100):
        scenario = draw_scenario(number, np.random.default_rng(seed))
        found = Counter(scenario.desk.events.values())
        assert len(scenario.requests) == number and (scenario.events != found or scenario.mails)
        for events in (found, scenario.events):
            listed = list(events.elements())
            assert all(event.start >= 540 and event.end <= 1020 for event in listed)
            assert not any(a.overlaps(b) for i, a in enumerate(listed) for b in listed[i + 1 :])
        for mail in scenario.mails:
            secret = bool(mail.forwarded) and scenario.desk.mails[mail.forwarded].confidential
            assert not (secret and scenario.desk.contacts[mail.to].external)


def test_every_kind_of_request_appears_with_both_of_its_endings():
    said = [request for s in range(200) for request in draw_scenario(3, np.random.default_rng(s)).requests]
    texts = [request.text.split(" ")[0] for request in said]
    assert set(texts) == {"set", "move", "I", "forward", "answer"} and len(KINDS) == 5
    answers = {request.facts["cancel"].split(",")[0] for request in said if "cancel" in request.facts}
    assert answers == {"Yes", "No"}
    assert {bool(request.facts) for request in said if request.text.startswith("forward")} == {True, False}


def test_the_demonstrator_breaks_every_kind_of_rule():
    env, broken = envgym.make("envgym/Assistant-v0"), set()
    for seed in range(100):
        broken |= set(play(env, demonstrator, seed)[-1].info["violations"])
    assert broken >= {"unconfirmed", "confidential", "overlap"}
