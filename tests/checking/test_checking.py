"""Every check finds the fault it is named for, and sound environments pass them all."""

import os
import random
import subprocess
import threading
import time
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import envgym
from envgym import Step, TextEnv, check_env
from envgym.agent import Player
from envgym.checking import CHECKS, CheckError, CheckFailure, CheckReport, hostile
from envgym.errors import UnknownIdError
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, tool


class Sound(TextEnv):
    """A die: each action adds a throw, the episode ends after five."""

    max_turns = 8

    def __init__(self) -> None:
        self.action_space = TextSpace(["throw", "wait"])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.total = 0, 0
        return "begin", {}

    def step(self, action):
        self.turn += 1
        if action.strip() != "throw":
            return self.reply("waited", {"pips": 0.0})
        pips = int(self.np_random.integers(1, 7))
        self.total += pips
        return self.reply(f"{pips}, in all {self.total}", {"pips": pips / 6})

    def reply(self, text, components):
        if self.turn >= 5:
            return Step.terminal(text, components, success=self.total > 0)
        return Step.running(text, components)

    def solver(self):
        return Always("throw")


class Always(Player):
    def __init__(self, action):
        self.action = action

    def act(self, observation, info):
        return self.action


class WarnsGymnasium(Sound):
    def reset(self, *, seed=7, options=None):
        return super().reset(seed=seed)


class IgnoresSeed(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class OwnGenerator(Sound):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def step(self, action):
        return super().step(action)._replace(observation=str(self.rng.integers(1000)))


class DrawsGlobally(Sound):
    def step(self, action):
        return super().step(action)._replace(observation=str(random.randrange(1000)))


class SeedsNumpy(Sound):
    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)


class ReadsGlobally(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"begin {random.getstate()[1][5]}", {}


class KeepsTotal(Sound):
    def reset(self, *, seed=None, options=None):
        total = getattr(self, "total", 0)
        result = super().reset(seed=seed)
        self.total = total
        return result


class SharesTotal(Sound):
    shared: ClassVar = [0]

    def reset(self, *, seed=None, options=None):
        self.shared[0] = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.shared[0] += 1
        return super().step(action)._replace(observation=f"{self.shared[0]} throws")


class MarkedByMisuse(Sound):
    def __init__(self):
        super().__init__()
        self.turn, self.total, self.running, self.spoiled = 0, 0, False, False

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.running = True
        return result

    def step(self, action):
        self.spoiled |= not self.running
        step = super().step(action)
        self.running = not step.terminated
        return step._replace(observation="spoiled") if self.spoiled else step


class ClosesOnce(Sound):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class Crashes(Sound):
    def step(self, action):
        action.encode("utf-8")
        return super().step(action)


class Hangs(Sound):
    def step(self, action):
        if len(action) > 1000:
            time.sleep(60)
        return super().step(action)


class Evaluates(Sound):
    def step(self, action):
        try:
            eval(action)
        except Exception:
            return super().step("wait")
        return super().step(action)


class RunsShell(Sound):
    def step(self, action):
        if "canary" in action:
            subprocess.run(f"true {action}", shell=True, stderr=subprocess.DEVNULL)
        return super().step("wait")


class InfiniteReward(Sound):
    def reply(self, text, components):
        return super().reply(text, components)._replace(reward=float("inf"))


class WrongComponents(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(reward=step.reward + 1)


class BothFlags(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(truncated=step.terminated, info={**step.info, "truncation_reason": "environment"})


class NoReason(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(terminated=False, truncated=step.terminated)


class ReasonWithoutTruncation(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(info={**step.info, "truncation_reason": "max_turns"})


class NoFinalObservation(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(observation="" if step.terminated else step.observation)


class NoneAtTheEnd(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(observation=None if step.terminated else step.observation)


class InfoWithArray(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(info={**step.info, "pips": np.int64(3)})


class InfoWithTime(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        return step._replace(info={**step.info, "at": time.perf_counter()})


class SoundTools(ToolEnv):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "begin", {}

    @tool
    def look(self, place: str) -> str:
        """Looks."""
        return f"nothing at {place}"


class StaleSchema(SoundTools):
    tools = (
        {
            "type": "function",
            "function": {"name": "look", "description": "", "parameters": {"properties": {"where": {}}}},
        },
    )


class SchemaWithoutTool(SoundTools):
    tools = (*SoundTools.tools, {"type": "function", "function": {"name": "go", "parameters": {"properties": {}}}})


class NoSchema(SoundTools):
    tools = ()


class FormlessSchema(Sound):
    tools = ({"name": "throw"},)


class WrongHandWrittenSchema(Sound):
    tools = ({"type": "function", "function": {"name": "reply", "parameters": {"properties": {"message": {}}}}},)


class BadSolver(Sound):
    def solver(self):
        return Always("wait")


class WorseThanRandom(Sound):
    def reply(self, text, components):
        step = super().reply(text, components)
        step.info.pop("success", None)
        return step

    def solver(self):
        return Always("wait")


class LeavesThread(Sound):
    def reset(self, *, seed=None, options=None):
        threading.Thread(target=time.sleep, args=(5,), name="forgotten", daemon=True).start()
        return super().reset(seed=seed)


FILES = []


class LeavesFile(Sound):
    def reset(self, *, seed=None, options=None):
        FILES.append(open(os.devnull))  # noqa: SIM115
        return super().reset(seed=seed)


class Returns(Sound):
    """Changes what each step returns."""

    changes: ClassVar[dict] = {}
    entries: ClassVar[dict] = {}

    def step(self, action):
        step = super().step(action)
        info = {**step.info, **self.entries}
        return step._replace(**{"info": info, **self.changes})


def returns(name, *, entries=None, **changes):
    """A class of that name."""
    return type(name, (Returns,), {"changes": changes, "entries": entries or {}})


class ResetsToSurrogate(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "\udc00", {}


class ResetsToText(Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "begin"


class ShortTuple(Sound):
    def step(self, action):
        return super().step(action)[:4]


class Repeats(Sound):
    """Answers what it cannot read by repeating it."""

    def step(self, action):
        step = super().step(action)
        return step if action in ("throw", "wait") else step._replace(observation=f"what is {action}?")


CHILDREN = []


def reap():
    while CHILDREN:
        child = CHILDREN.pop()
        child.kill()
        child.wait()


class LeavesChild(Sound):
    def reset(self, *, seed=None, options=None):
        reap()
        CHILDREN.append(subprocess.Popen(["sleep", "30"]))
        return super().reset(seed=seed)


TIMEOUT_S = hostile.TIMEOUT_S

BROKEN = [
    (WarnsGymnasium, "gymnasium", "default seed argument"),
    (IgnoresSeed, "seeding", "call super().reset(seed=seed) first"),
    (OwnGenerator, "seeding", "take all randomness from self.np_random"),
    (DrawsGlobally, "global_random_state", "`random` was changed"),
    (SeedsNumpy, "global_random_state", "`numpy.random` was changed"),
    (ReadsGlobally, "global_random_state", "depends on the process-global random state"),
    (KeepsTotal, "leak_between_episodes", "an episode played before changed this one"),
    (SharesTotal, "leak_between_instances", "stepped alternately"),
    (MarkedByMisuse, "episode_order", "before reset changed"),
    (MarkedByMisuse, "episode_order", "after the end changed"),
    (ClosesOnce, "close_twice", "RuntimeError: already closed"),
    (Crashes, "hostile_actions", "a lone surrogate action raised UnicodeEncodeError"),
    (Hangs, "hostile_actions", "a huge action took more than"),
    (Evaluates, "injection", "a Python injection was executed"),
    (RunsShell, "injection", "a shell injection was executed"),
    (InfiniteReward, "rewards_finite", "a finite number, got inf"),
    (returns("TextReward", reward="1"), "rewards_finite", "the reward is '1' (str); it must be a number"),
    (returns("NoReward", reward=None), "rewards_finite", "the reward is None (NoneType); it must be a number"),
    (returns("HugeReward", reward=10**400), "rewards_finite", "a reward must be a finite number"),
    (
        returns("ListOfComponents", entries={"reward_components": [1.0]}),
        "reward_components",
        "info['reward_components'] is [1.0] (list); it must be a dict of numbers by name",
    ),
    (
        returns("TextComponents", entries={"reward_components": {"pips": "1"}}),
        "reward_components",
        "the reward component 'pips' is '1' (str); it must be a number",
    ),
    (
        returns("Overflowing", entries={"reward_components": {"a": 1e308, "b": 1e308}}),
        "reward_components",
        "sum to nan, but the reward is",
    ),
    (returns("TextFlag", terminated="False"), "one_ending", "terminated is 'False' (str); it must be True or False"),
    (returns("NoFlag", truncated=None), "one_ending", "truncated is None (NoneType); it must be True or False"),
    (returns("Bytes", observation=b"x"), "observations", "the observation is b'x' (bytes); it must be a string"),
    (returns("Surrogate", observation="\ud800"), "observations", "half of a surrogate pair, which UTF-8 cannot encode"),
    (ResetsToSurrogate, "observations", "half of a surrogate pair, which UTF-8 cannot encode"),
    (Repeats, "hostile_actions", "a lone surrogate action raised ContractError: the observation holds"),
    (ResetsToText, "seeding", "ContractError: reset returned 'begin' (str); return (observation, info)"),
    (ShortTuple, "seeding", "return (observation, reward, terminated, truncated, info)"),
    (returns("NoInfo", info=None), "info_json", "info is None (NoneType); it must be a dict"),
    (returns("WrongRole", entries={"role": "system"}), "info_json", "info['role'] is 'system' (str)"),
    (returns("WrongError", entries={"action_error": 1}), "info_json", "info['action_error'] is 1 (int)"),
    (returns("WrongSuccess", entries={"success": "no"}), "info_json", "info['success'] is 'no' (str)"),
    (returns("NaNSuccess", entries={"success": float("nan")}), "info_json", "info['success'] is nan (float)"),
    (
        returns("SurrogateInfo", entries={"x": "\ud800"}),
        "info_json",
        "info['x'] is not JSON-serialisable ('utf-8' codec",
    ),
    (WrongComponents, "reward_components", "but the reward is"),
    (BothFlags, "one_ending", "both set"),
    (NoReason, "truncation_reason", "without info['truncation_reason']"),
    (ReasonWithoutTruncation, "truncation_reason", "not truncated"),
    (NoFinalObservation, "observations", "final observation is missing"),
    (NoneAtTheEnd, "observations", "must be a string, at the end of an episode too"),
    (InfoWithArray, "info_json", "info['pips'] is not JSON-serialisable"),
    (InfoWithTime, "info_reproducible", "differs between two plays"),
    (StaleSchema, "tool_schemas", "'look' does not match its function look(place)"),
    (SchemaWithoutTool, "tool_schemas", "'go' has a schema but no function"),
    (NoSchema, "tool_schemas", "'look' has a function but no schema"),
    (FormlessSchema, "tool_schemas", "no schema of the form"),
    (WrongHandWrittenSchema, "tool_schemas", "but its function takes ['components', 'text']"),
    (BadSolver, "solver", "the solver succeeds in 0%"),
    (WorseThanRandom, "solver", "earns less than random"),
    (LeavesThread, "residue", "threads: forgotten"),
    (LeavesFile, "residue", "open files"),
    (LeavesChild, "residue", "child processes"),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(hostile, "TIMEOUT_S", 0.2)
    monkeypatch.setattr("envgym.checking.determinism.GRACE_S", 0.2)
    yield
    while FILES:
        FILES.pop().close()
    reap()


@pytest.mark.parametrize(
    ("broken", "check", "message"), BROKEN, ids=[f"{cls.__name__}-{i}" for i, (cls, *_) in enumerate(BROKEN)]
)
def test_a_fault_is_found_by_its_check(broken, check, message):
    report = check_env(broken)
    assert not report.ok
    assert any(failure.check == check and message in failure.message for failure in report.failures), str(report)


def test_every_check_has_a_broken_environment():
    assert {check for _, check, _ in BROKEN} == set(CHECKS)


@pytest.mark.parametrize(
    "source", ["envgym/PointerChase-v0", "envgym/HigherLower-v0", "envgym/Upkeep-v0", Sound, SoundTools]
)
def test_a_sound_environment_passes_every_check(source, monkeypatch):
    monkeypatch.setattr(hostile, "TIMEOUT_S", TIMEOUT_S)  # the short limit of the other tests would measure the machine
    report = check_env(source)
    assert report.ok, str(report)
    assert report.checks == tuple(CHECKS) and report.failed_checks == ()
    report.raise_if_failed()
    assert str(report).endswith("19 of 19 checks passed")


def test_an_instance_is_checked_and_not_touched():
    env = Sound()
    env.reset(seed=3)
    env.step("throw")
    before = dict(vars(env), _np_random=None), env.np_random.bit_generator.state
    assert check_env(env).ok
    assert (dict(vars(env), _np_random=None), env.np_random.bit_generator.state) == before


def test_a_made_environment_and_its_spec_are_checked():
    env = envgym.make("envgym/HigherLower-v0")
    report = check_env(env)
    assert report.ok and report.environment == "envgym/HigherLower-v0"
    assert check_env(env.spec).ok


def test_the_report_lists_every_failed_check():
    class Awful(WrongComponents, ClosesOnce):
        def solver(self):
            return Always("wait")

    report = check_env(Awful)
    assert report.failed_checks == ("close_twice", "reward_components", "solver")
    text = str(report)
    assert text.startswith("Awful: 16 of 19 checks passed\n") and text.count("\n") == 3
    with pytest.raises(CheckError) as caught:
        report.raise_if_failed()
    assert str(caught.value) == text


def test_an_environment_that_always_raises_is_reported_not_raised():
    class Dead(Sound):
        def reset(self, *, seed=None, options=None):
            raise OSError("no disk")

    report = check_env(Dead)
    assert ("seeding", "could not be completed, OSError: no disk") in [(f.check, f.message) for f in report.failures]
    assert len(report.failed_checks) > 10


def test_what_is_found_again_and_again_is_one_line_of_the_report():
    class Dead(Sound):
        def reset(self, *, seed=None, options=None):
            raise OSError("no disk")

    lines = [line for line in str(check_env(Dead)).splitlines() if "could not be completed, OSError: no disk" in line]
    assert len(lines) == 1 and lines[0].startswith("  seeding, global_random_state, leak_between_episodes, ")
    report = CheckReport(
        "E", ("a", "b"), (*[CheckFailure("a", "x")] * 3, CheckFailure("b", "y"), CheckFailure("b", "x"))
    )
    assert str(report) == "E: 0 of 2 checks passed\n  a, b: x (4 times)\n  b: y"


def test_actions_that_fail_in_the_same_way_are_one_finding():
    class Picky(Sound):
        def step(self, action):
            return super().step({"throw": "throw", "wait": "wait"}[action])

    found = [f.message for f in check_env(Picky).failures if f.check == "hostile_actions"]
    assert len(found) == 1 and found[0].startswith("a empty action raised KeyError: ''; answer it with an observation")
    assert found[0].endswith(f"more: {', '.join(list(hostile.HOSTILE_ACTIONS)[1:])})")


def test_what_is_no_text_environment_is_refused():
    with pytest.raises(ValueError, match="instances of TextEnv, got CartPoleEnv"):
        check_env(lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(UnknownIdError, match="Did you mean"):
        check_env("envgym/Upkep-v0")


def test_an_instance_that_cannot_be_copied_is_refused():
    env = Sound()
    env.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"this Sound cannot be copied .* pass its class or a factory"):
        check_env(env)


def test_a_hang_is_found_in_another_thread_too():
    reports = []
    thread = threading.Thread(target=lambda: reports.append(check_env(Hangs)))
    thread.start()
    thread.join()
    assert any("a huge action took more than" in failure.message for failure in reports[0].failures)


def test_the_global_random_state_is_left_as_it_was():
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    check_env(DrawsGlobally)
    random_after, numpy_after = random.getstate(), np.random.get_state()[1].tolist()
    assert numpy_after == before[1]
    assert check_env(Sound).ok and random.getstate() == random_after
