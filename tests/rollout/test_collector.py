"""Many episodes at once: in order, reproducible whatever the timing, failures replaced and never scored."""

import asyncio
import dataclasses
import threading
import time

import gymnasium
import pytest
from fakes import Countdown, ScriptedPolicy

import envgym
from envgym.agents.policy_agent import PolicyAgent
from envgym.errors import CollectionError, UnplayableError
from envgym.policies.tiny_model import byte_tokenizer, create_model
from envgym.policies.torch_policy import TorchPolicy
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.rollout.episode import FunctionAgent, run_episode
from envgym.rollout.seeds import FIRST_TRAINING_SEED, training_requests
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
    running, most, lock = 0, 0, threading.Lock()

    def delay(seed, turn):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return 0.0

    collect(ECHO, requests(6), concurrency=3, num_threads=3, delay=delay, length=2)
    assert most == 3


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
    assert agent.policy._engine.num_requests == 0
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
