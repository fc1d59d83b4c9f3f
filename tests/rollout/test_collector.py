"""Many episodes at once: in order, reproducible whatever the timing, failures replaced and never scored."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import pytest
from fakes import Countdown, ScriptedPolicy, registered

import envgym
from envgym.agent import Agent, Player
from envgym.agents.policy_agent import PolicyAgent
from envgym.engines.embedded.policy import TorchPolicy
from envgym.engines.embedded.tiny_model import byte_tokenizer, create_model
from envgym.errors import CollectionError, UnplayableError
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import FIRST_TRAINING_SEED, Collector, EpisodeRequest, training_requests
from envgym.rollout.episode import FunctionAgent, run_episode
from envgym.types import SamplingParams

RENDERER = ChatMLRenderer(byte_tokenizer())
ECHO = FunctionAgent(lambda observation: f"{observation}!")


def requests(count, spares=()):
    return [EpisodeRequest(seed, 1000 + seed, tuple(100 * n + seed for n in spares)) for seed in range(count)]


def without_timings(trajectory):
    turns = (dataclasses.replace(turn, generate_s=0.0, step_s=0.0) for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=tuple(turns))


def collect(agent, wanted, *, concurrency=4, num_threads=4, allow_missing=False, on_episode=None, **env):
    collector = Collector(lambda: Countdown(**env), concurrency=concurrency, num_threads=num_threads)
    try:
        return collector.collect(agent, wanted, allow_missing=allow_missing, on_episode=on_episode)
    finally:
        collector.close()


class Overlap:
    """The most calls that were inside at once."""

    def __init__(self):
        self.running, self.most, self.lock = 0, 0, threading.Lock()

    def pause(self, seconds):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(seconds)
        with self.lock:
            self.running -= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_model(
        tmp_path_factory.mktemp("model"), hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, context_length=96
    )


def torch_agent(folder, *, max_concurrency=3, deterministic=True, **sampling):
    policy = TorchPolicy(folder, max_concurrency=max_concurrency, deterministic=deterministic)
    # Half the vocabulary ends a turn, so that an untrained model finishes most of its turns.
    return PolicyAgent(policy, RENDERER, SamplingParams(max_new_tokens=8, stop_token_ids=tuple(range(128)), **sampling))


# -- order and concurrency -------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_requests_whatever_finishes_first():
    finished = []
    collection = collect(
        ECHO,
        requests(8),
        delay=lambda seed, turn: 0.002 * (8 - seed),
        on_episode=lambda index, trajectory: finished.append(index),
    )
    assert [trajectory.seed for trajectory in collection.trajectories] == list(range(8))
    assert sorted(finished) == list(range(8)) != finished
    assert collection.failed == () and collection.missing == ()


def test_slow_environment_steps_overlap():
    steps = Overlap()
    collect(
        ECHO, requests(6), concurrency=3, num_threads=3, delay=lambda seed, turn: steps.pause(0.02) or 0.0, length=2
    )
    assert steps.most == 3


def test_no_more_episodes_run_at_once_than_allowed():
    made = []
    collector = Collector(lambda: made.append(Countdown()) or made[-1], concurrency=2, num_threads=4)
    collector.collect(ECHO, requests(7))
    collector.collect(ECHO, requests(7))
    assert len(made) == 2  # and kept from one collection to the next
    collector.close()
    assert all(env.closed for env in made)


def test_nothing_requested_brings_nothing():
    assert collect(ECHO, []).trajectories == ()


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="must be at least 1, got 0 and 4"):
        Collector(Countdown, concurrency=0, num_threads=4)


# -- determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}], ids=["plain", "top-k top-p"]
)
def test_deterministic_sampling_does_not_depend_on_the_timing_of_environments(folder, sampling):
    def play(delay):
        collection = collect(torch_agent(folder, **sampling), requests(10), concurrency=3, delay=delay, length=3)
        return [without_timings(trajectory) for trajectory in collection.trajectories]

    def jitter(factor):
        return lambda seed, turn: 0.001 * ((factor * seed + turn) % 5)

    want = play(lambda seed, turn: 0.0)
    assert play(jitter(3)) == want
    assert play(jitter(7)) == want
    assert len({trajectory.turns[0].action for trajectory in want}) > 5
    assert sum(turn.executed for trajectory in want for turn in trajectory.turns) > 20


def test_failures_do_not_disturb_what_other_episodes_sample(folder):
    clean = collect(torch_agent(folder), requests(8), concurrency=8)
    disturbed = collect(
        torch_agent(folder),
        requests(8, spares=(1,)),
        concurrency=8,
        fail_step=lambda seed, turn: seed == 5 and turn == 1,
    )
    for index in (0, 1, 2, 3, 4, 6, 7):
        ours, theirs = disturbed.trajectories[index], clean.trajectories[index]
        assert [t.action_ids for t in ours.turns] == [t.action_ids for t in theirs.turns]
    assert disturbed.trajectories[5].seed == 105


def test_without_determinism_every_request_is_still_answered_in_order(folder):
    collection = collect(
        torch_agent(folder, deterministic=False), requests(9), delay=lambda seed, turn: 0.001 * (seed % 3)
    )
    assert [trajectory.seed for trajectory in collection.trajectories] == list(range(9))


def test_the_seed_of_the_agent_decides_what_it_samples(folder):
    wanted = [EpisodeRequest(4, 1), EpisodeRequest(4, 2), EpisodeRequest(4, 1)]
    a, b, c = collect(torch_agent(folder), wanted, concurrency=1).trajectories
    assert a.turns[0].observation == b.turns[0].observation
    assert [t.action_ids for t in a.turns] == [t.action_ids for t in c.turns] != [t.action_ids for t in b.turns]


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fail_reset", "fail_step"])
def test_a_failed_episode_is_recorded_replaced_and_not_scored(where):
    collection = collect(ECHO, requests(6, spares=(1, 2)), **{where: lambda seed, *turn: seed in (2, 4, 104)})
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 1, 102, 3, 204, 5]
    assert all(trajectory.failure is None for trajectory in collection.trajectories)
    assert [trajectory.seed for trajectory in collection.failed] == [2, 4, 104]
    assert all("OSError" in trajectory.failure for trajectory in collection.failed)
    assert collection.missing == ()


def test_an_environment_that_raised_is_closed_and_not_used_again():
    made = []

    def make_env():
        made.append(Countdown(fail_step=lambda seed, turn: seed == 0))
        return made[-1]

    collector = Collector(make_env, concurrency=1)
    collector.collect(ECHO, requests(3, spares=(1,)))
    assert len(made) == 2
    assert made[0].closed and not made[1].closed
    collector.close()


def test_a_broken_environment_that_cannot_even_be_closed_is_replaced_all_the_same():
    class Stubborn(Countdown):
        def close(self):
            if self.seed == 0:
                raise OSError("close failed")

    collector = Collector(lambda: Stubborn(fail_step=lambda seed, turn: seed == 0), concurrency=1)
    collection = collector.collect(ECHO, requests(2, spares=(1,)))
    assert [trajectory.seed for trajectory in collection.trajectories] == [100, 1]
    collector.close()


@pytest.mark.parametrize("where", ["fail_reset", "fail_step"])
def test_an_environment_that_always_raises_ends_the_collection_with_its_failure(folder, where):
    agent = torch_agent(folder)
    with pytest.raises(
        CollectionError, match=r"failed 3 times in a row; commonest failure so far \(\d+ times\): OSError: the sandbox"
    ):
        collect(agent, requests(5, spares=(1, 2)), **{where: lambda seed, *turn: True})
    assert_leaves_nothing_behind(agent)


def test_an_episode_that_keeps_failing_is_missing_where_that_is_allowed():
    collection = collect(
        ECHO, requests(4, spares=(1,)), allow_missing=True, fail_reset=lambda seed: seed % 100 in (1, 3)
    )
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 2]
    assert collection.missing == (1, 3)
    assert [trajectory.seed for trajectory in collection.failed] == [1, 101, 3, 103]


def test_an_agent_that_cannot_play_ends_the_collection_at_once():
    agent = PolicyAgent(
        ScriptedPolicy(lambda prompt, seed: ([104], "stop"), context_length=5), RENDERER, SamplingParams()
    )
    with pytest.raises(UnplayableError, match="the policy's context holds 5"):
        collect(agent, requests(4, spares=(1, 2)))
    assert not agent.policy.sessions


def test_a_policy_works_after_a_collection_was_given_up(folder):
    agent = torch_agent(folder)
    want = collect(torch_agent(folder), requests(3))
    with pytest.raises(CollectionError):
        collect(agent, requests(5), fail_step=lambda seed, turn: seed == 3)
    got = collect(agent, requests(3))
    assert [without_timings(t) for t in got.trajectories] == [without_timings(t) for t in want.trajectories]


def test_a_policy_that_fails_does_not_hang_the_collection():
    def replies(prompt, seed):
        raise RuntimeError("the server is gone")

    agent = PolicyAgent(ScriptedPolicy(replies), RENDERER, SamplingParams())
    with pytest.raises(CollectionError, match="RuntimeError: the server is gone"):
        collect(agent, requests(4, spares=(1,)))
    assert not agent.policy.sessions


def test_an_interrupted_collection_can_be_followed_by_another(folder):
    agent = torch_agent(folder)

    def stop(index, trajectory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(agent, requests(6), on_episode=stop)
    assert len(collect(agent, requests(6)).trajectories) == 6


def assert_leaves_nothing_behind(agent):
    assert not agent.policy._sessions
    assert agent.policy._scheduler.num_requests == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("envgym-env")]
    assert len(collect(agent, requests(2)).trajectories) == 2


def test_sessions_and_threads_are_gone_after_a_collection(folder):
    agent = torch_agent(folder)
    collect(agent, requests(5, spares=(1,)), fail_step=lambda seed, turn: seed == 2)
    assert_leaves_nothing_behind(agent)


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_training_seeds_depend_on_run_purpose_iteration_and_index_alone():
    all_at_once = training_requests(1, "train", 3, range(8))
    assert training_requests(1, "train", 3, range(4, 8)) == all_at_once[4:]
    others = [(2, "train", 3), (1, "warm_start", 3), (1, "train", 4)]
    assert all(training_requests(*other, range(1)) != all_at_once[:1] for other in others)


def test_training_seeds_lie_above_those_of_evaluations_and_differ():
    drawn = [r for i in range(4) for r in training_requests(0, "train", i, range(50))]
    seeds = [seed for request in drawn for seed in (request.seed, *request.spare_seeds)]
    assert min(seeds) >= FIRST_TRAINING_SEED
    assert len(set(seeds)) == len(seeds)
    assert {len(request.spare_seeds) for request in drawn} == {2}


def test_episodes_can_be_played_where_a_loop_is_running_as_in_a_notebook(folder):
    agent = torch_agent(folder)

    async def cell():
        return run_episode(Countdown(), agent, seed=1), collect(agent, requests(3))

    single, collection = asyncio.run(cell())
    assert single.failure is None
    again = collect(torch_agent(folder), requests(3))
    assert [without_timings(t) for t in collection.trajectories] == [without_timings(t) for t in again.trajectories]
    assert_leaves_nothing_behind(agent)


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError(), SystemExit(3)])
def test_what_an_event_loop_takes_for_its_own_is_a_failed_episode_like_any_other(error):
    class Odd(envgym.TextEnv):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return "go", {}

        def step(self, action):
            raise error

    envgym.register("test/Odd-v0", Odd)
    try:
        report = envgym.evaluate(lambda observation: "a", "test/Odd-v0", episodes=5, concurrency=2)["test/Odd-v0"]
    finally:
        gymnasium.registry.pop("test/Odd-v0")
    assert (report.episodes, report.failed) == (0, 5)


# -- environments and agents that hang -------------------------------------------------------------------------------


class Hanging(Countdown):
    """Hangs in the step, reset or constructor that its class names, for one seed, until it is let go."""

    def __init__(self, where="step", seed=1, closed=None, **settings):
        super().__init__(**settings)
        self.where, self.hanging_seed, self.closings = where, seed, [] if closed is None else closed
        self.go = threading.Event()
        self.busy = False

    def wait(self, where):
        if where == self.where and self.seed == self.hanging_seed:
            self.busy = True
            self.go.wait(20)
            self.busy = False

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self.wait("reset")
        return result

    def step(self, action):
        self.wait("step")
        return super().step(action)

    def close(self):
        assert not self.busy, "closed while it was stepped"
        self.closings.append((self.seed, threading.current_thread().name))


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_call_that_takes_too_long_fails_its_episode_alone(where):
    made = []

    def make_env():
        made.append(Hanging(where))
        return made[-1]

    collector = Collector(make_env, concurrency=2, num_threads=2, step_timeout_s=0.2)
    started = time.perf_counter()
    collection = collector.collect(ECHO, requests(6, spares=(1,)))
    assert time.perf_counter() - started < 5
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 101, 2, 3, 4, 5]
    assert [trajectory.failure for trajectory in collection.failed] == [
        f"StepTimeoutError: {where} took longer than 0.2 s"
    ]
    collector.close()
    assert time.perf_counter() - started < 5, "closing waited for the thread that hangs"
    hanging = next(env for env in made if env.busy)
    assert len(made) == 3 and hanging.closings == []  # not while its step is running
    hanging.go.set()
    deadline = time.monotonic() + 5
    while not hanging.closings and time.monotonic() < deadline:
        time.sleep(0.01)
    assert hanging.closings[0][1].startswith("envgym-env")  # by its own thread, once it is back
    assert all(len(env.closings) == 1 for env in made)


def test_threads_that_hang_take_nobodys_place():
    class Stuck(Hanging):
        def wait(self, where):
            if where == "step" and self.seed % 2:
                self.go.wait(20)

    collector = Collector(Stuck, concurrency=1, num_threads=1, step_timeout_s=0.05)
    collection = collector.collect(ECHO, requests(10), allow_missing=True)
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 2, 4, 6, 8]
    assert collection.missing == (1, 3, 5, 7, 9)
    collector.close()


def test_the_time_limit_does_not_count_the_wait_for_a_thread():
    collector = Collector(
        lambda: Countdown(length=1, delay=lambda seed, turn: 0.1), concurrency=6, num_threads=1, step_timeout_s=0.3
    )
    collection = collector.collect(ECHO, requests(6), allow_missing=True)
    assert len(collection.trajectories) == 6 and collection.failed == ()
    collector.close()


def test_time_limits_that_are_none_are_refused():
    for limit in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="step_timeout_s must be positive, or None for no limit"):
            Collector(Countdown, step_timeout_s=limit)
    collector = Collector(Countdown, step_timeout_s=None)
    assert len(collector.collect(ECHO, requests(2)).trajectories) == 2
    collector.close()


INTERRUPTED = """
import os, signal, sys, threading, time
import envgym
from envgym import Step, TextEnv

class Hang(TextEnv):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "go", {}
    def step(self, action):
        if sys.argv[1] == "step":
            os.write(1, b"hangs\\n")
            time.sleep(60)
        return Step.terminal("over")

def act(observation):
    if sys.argv[1] == "act":
        os.write(1, b"hangs\\n")
        time.sleep(60)
    return "x"

envgym.register("test/Hang-v0", Hang)
envgym.evaluate(act, "test/Hang-v0", episodes=2)
"""


@pytest.mark.parametrize("where", ["step", "act"])
def test_an_interrupt_ends_the_program_though_a_call_hangs(where):
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert program.stdout.readline() == b"hangs\n"
        started = time.perf_counter()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert time.perf_counter() - started < 8
    assert errors.strip().endswith(b"KeyboardInterrupt")


def test_an_interrupted_step_is_not_met_by_the_next_collection():
    collector = Collector(lambda: Hanging(seed=0), concurrency=2, num_threads=2)

    def stop(index, trajectory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collector.collect(ECHO, requests(3), on_episode=stop)
    again = [EpisodeRequest(seed, seed) for seed in (5, 6)]
    assert [trajectory.seed for trajectory in collector.collect(ECHO, again).trajectories] == [5, 6]
    collector.close()


# -- environments that cannot be made again --------------------------------------------------------------------------


def test_a_replacement_that_cannot_be_made_fails_the_episodes_it_was_for_and_is_tried_again():
    made = []

    def make_env():
        made.append(None)
        if len(made) in (2, 3):
            raise OSError("no room for another sandbox")
        return Countdown(fail_step=lambda seed, turn: seed == 1)

    collector = Collector(make_env, concurrency=1)
    collection = collector.collect(ECHO, requests(6), allow_missing=True)
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 4, 5]
    assert [trajectory.failure.partition(" (")[0] for trajectory in collection.failed] == [
        "OSError: the sandbox died",
        "OSError: no room for another sandbox",
        "OSError: no room for another sandbox",
    ]
    assert {trajectory.env_id for trajectory in collection.failed} == {"Countdown"}
    collector.close()


def test_environments_that_cannot_be_made_at_all_are_the_callers_error_unless_it_says_which_they_are():
    def make_env():
        raise OSError("no docker")

    with pytest.raises(OSError, match="no docker"):
        Collector(make_env).collect(ECHO, requests(3), allow_missing=True)
    collection = Collector(make_env, env_id="t/E-v0").collect(ECHO, requests(3), allow_missing=True)
    assert [(trajectory.env_id, trajectory.seed) for trajectory in collection.failed] == [
        ("t/E-v0", s) for s in range(3)
    ]
    assert collection.missing == (0, 1, 2) and collection.unplayable is None


# -- agents that cannot start ----------------------------------------------------------------------------------------


class Starting(Agent):
    """Starts as `start` says for odd seeds, and plays otherwise."""

    def __init__(self, odd):
        self.odd = odd

    def start(self, env, *, seed):
        return self.odd() if seed % 2 else ECHO.start(env, seed=seed)


def broken_start():
    raise ConnectionError("the model is gone")


@pytest.mark.parametrize(
    ("odd", "failure"),
    [
        (broken_start, "ConnectionError: the model is gone"),
        (lambda: int("seven"), "ValueError: invalid literal"),
        (lambda: None, "TypeError: the start of an agent must return a Player, got NoneType"),
        (lambda: "x", "TypeError: the start of an agent must return a Player, got str"),
    ],
)
def test_an_agent_that_cannot_start_an_episode_fails_that_one(odd, failure):
    collection = collect(Starting(odd), requests(5), allow_missing=True)
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 2, 4]
    assert all(trajectory.failure.startswith(failure) for trajectory in collection.failed)
    assert collection.missing == (1, 3)


def test_an_agent_that_says_it_cannot_play_ends_the_collection():
    def refuse():
        raise UnplayableError("this agent plays chess")

    with pytest.raises(UnplayableError, match="this agent plays chess"):
        collect(Starting(refuse), requests(5), allow_missing=True)


# -- first prompts that are too long ---------------------------------------------------------------------------------


class Wordy(Countdown):
    """Begins with a long observation for some seeds."""

    def __init__(self, long=lambda seed: seed % 2 == 1, **settings):
        super().__init__(**settings)
        self.long = long

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return (observation * 100 if self.long(self.seed) else observation), info


def wordy_agent(kind=PolicyAgent):
    replies = lambda prompt, seed: ([104, RENDERER.stop_token_ids[0]], "stop")  # noqa: E731
    return kind(ScriptedPolicy(replies, context_length=120), RENDERER, SamplingParams())


def test_a_first_prompt_that_is_too_long_for_one_seed_is_replaced_by_another():
    made = []

    def make_env():
        made.append(Wordy(long=lambda seed: seed == 1, length=1))
        return made[-1]

    collector = Collector(make_env, concurrency=2)
    agent = wordy_agent()
    collection = collector.collect(agent, requests(4, spares=(1, 2)))
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 101, 2, 3]
    assert collection.failed[0].failure.startswith("PromptLengthError: the first prompt has ")
    assert collection.unplayable is None
    assert len(made) == 2 and not any(env.closed for env in made)  # nothing is wrong with the environment
    assert not agent.policy.sessions
    collector.close()


def test_only_where_every_first_prompt_is_too_long_is_that_the_answer():
    collector = Collector(lambda: Wordy(long=lambda seed: True), concurrency=2)
    collection = collector.collect(wordy_agent(), requests(4), allow_missing=True)
    assert collection.missing == (0, 1, 2, 3) and "the policy's context holds 120" in str(collection.unplayable)
    with pytest.raises(UnplayableError, match="the policy's context holds 120"):
        collector.collect(wordy_agent(), requests(4, spares=(1, 2)))
    collector.close()


def test_an_evaluation_goes_on_after_first_prompts_that_are_too_long_and_so_does_its_resumption(tmp_path):
    class Named(PolicyAgent):
        """A policy agent that can be identified."""

        def settings(self):
            return {}

    agent = wordy_agent(Named)
    env_id = registered("Wordy", Wordy, kwargs={"length": 1})
    for _ in range(2):  # the second time only those that failed are played
        report = envgym.evaluate(agent, env_id, episodes=4, results=tmp_path / "results")[env_id]
        assert (report.episodes, report.failed) == (2, 2)
    always = registered("AlwaysWordy", Wordy, kwargs={"long": lambda seed: True})
    with pytest.raises(UnplayableError, match="the policy's context holds 120"):
        envgym.evaluate(agent, always, episodes=3)


# -- attempts --------------------------------------------------------------------------------------------------------


def test_more_attempts_change_nothing_about_those_before():
    few, many = (training_requests(4, "train", 2, range(5), max_attempts=count) for count in (3, 9))
    assert [(r.seed, r.agent_seed, r.spare_seeds) for r in few] == [
        (r.seed, r.agent_seed, r.spare_seeds[:2]) for r in many
    ]
    assert {len(r.spare_seeds) for r in many} == {8}
    assert {r.spare_seeds for r in training_requests(4, "train", 2, range(5), max_attempts=1)} == {()}


def test_a_burst_of_failures_is_waited_for(monkeypatch):
    monkeypatch.setattr("envgym.rollout.collector.FIRST_PAUSE_S", 0.05)
    up = time.monotonic() + 0.3

    collector = Collector(lambda: Countdown(length=1, fail_reset=lambda seed: time.monotonic() < up), concurrency=1)
    collection = collector.collect(ECHO, requests(1, spares=range(1, 8)))
    assert len(collection.trajectories) == 1 and 3 < len(collection.failed) < 8
    collector.close()


# -- agents that block -----------------------------------------------------------------------------------------------


def test_slow_functions_act_at_the_same_time():
    together = threading.Barrier(6)  # no call returns before all six are inside

    def slow(observation):
        together.wait(timeout=60)
        return "x"

    collection = collect(FunctionAgent(slow), requests(6), concurrency=6, num_threads=1, length=2)
    assert all(t.turns[0].action == "x" for t in collection.trajectories)


def test_a_player_that_blocks_is_called_by_one_thread_at_a_time_and_a_cheap_one_by_none():
    loop_threads, calls, lock = set(), [], threading.Lock()

    class Watched(Player):
        def __init__(self, blocking):
            self.blocking, self.inside = blocking, threading.Lock()

        def act(self, observation, info):
            assert self.inside.acquire(blocking=False), "called by two threads at a time"
            time.sleep(0.002)
            with lock:
                calls.append(threading.current_thread().name)
            self.inside.release()
            return "x"

        def close(self):
            assert self.inside.acquire(blocking=False), "closed in mid-call"
            loop_threads.add(threading.current_thread().name)

    class Watching(Agent):
        def __init__(self, blocking):
            self.blocking = blocking

        def start(self, env, *, seed):
            return Watched(self.blocking)

    assert len(collect(Watching(True), requests(6)).trajectories) == 6
    assert len(calls) == 18 and all(name.startswith("envgym-agent") for name in calls)
    calls.clear()
    assert len(collect(Watching(False), requests(6)).trajectories) == 6
    assert len(calls) == 18 and set(calls) == loop_threads


def test_an_async_function_is_an_agent():
    waiting = []

    async def act(observation):
        waiting.append(threading.current_thread().name)
        await asyncio.sleep(0.01)
        return "later"

    class Callable:
        async def __call__(self, observation):
            return "later"

    for agent in (act, Callable(), lambda observation: act(observation)):
        collection = collect(FunctionAgent(agent), requests(3), length=1)
        assert [t.turns[0].action for t in collection.trajectories] == ["later"] * 3
        assert run_episode(Countdown(length=1), agent).turns[0].action == "later"
    assert not any(name.startswith("envgym-agent") for name in waiting)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), StopIteration()])
def test_an_agent_that_raises_what_is_not_its_own_fails_its_episode(error):
    class Odd(Player):
        def act(self, observation, info):
            raise error

    collection = collect(Starting(Odd), requests(4), allow_missing=True)
    assert [trajectory.seed for trajectory in collection.trajectories] == [0, 2]
    assert collection.missing == (1, 3)
