"""Collection ahead of training: bounded staleness and its metrics, fixed batches, nothing dropped for being long."""

import collections
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from fakes import Countdown, ScriptedPolicy

from envgym.agents.policy_agent import PolicyAgent
from envgym.engines.embedded.tiny_model import byte_tokenizer
from envgym.errors import CollectionError
from envgym.rendering import ChatMLRenderer
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.rollout.episode import FunctionAgent
from envgym.rollout.stream import EpisodeStream, dropped_metrics, lag_metrics
from envgym.types import SamplingParams, Trajectory, Turn, VersionSpan

RENDERER = ChatMLRenderer(byte_tokenizer())
ECHO = FunctionAgent(lambda observation: f"{observation}!")


def requests(iteration, count=6):
    return [EpisodeRequest(1000 * iteration + n, n) for n in range(count)]


@contextmanager
def stream(agent=ECHO, *, max_lag=1, last=6, wanted=requests, allow_missing=False, **env):
    collectors = [Collector(lambda: Countdown(**env), concurrency=3, num_threads=2) for _ in range(max_lag + 1)]
    running = EpisodeStream(collectors, agent, wanted, iterations=range(1, last + 1), allow_missing=allow_missing)
    try:
        yield running
    finally:
        running.close()
        for collector in collectors:
            collector.close()


def seeds(collection):
    return [trajectory.seed for trajectory in collection.trajectories]


def test_each_iteration_gets_exactly_its_own_episodes():
    with stream() as episodes:
        for iteration in range(1, 7):
            episodes.advance(iteration - 1)
            assert seeds(episodes.take(iteration)) == [request.seed for request in requests(iteration)]


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_an_iteration_starts_when_the_weights_are_new_enough_and_not_before(max_lag):
    asked = []

    def wanted(iteration):
        asked.append(iteration)
        return requests(iteration)

    with stream(max_lag=max_lag, wanted=wanted) as episodes:
        episodes.advance(0)
        assert asked == list(range(1, max_lag + 2))
        episodes.take(1)
        assert asked == list(range(1, max_lag + 2)), "taking a batch does not make the weights newer"
        episodes.advance(1)
        assert asked == list(range(1, max_lag + 3))


def test_no_token_is_sampled_by_weights_older_than_the_bound():
    policy = ScriptedPolicy(lambda prompt, seed: ((65, 66), "stop"))
    policy.version = 0
    agent = PolicyAgent(policy, RENDERER, SamplingParams(max_new_tokens=4))
    lags = []
    with stream(agent, max_lag=2, last=8, delay=lambda seed, turn: 0.002) as episodes:
        for iteration in range(1, 9):
            episodes.advance(policy.version)
            batch = episodes.take(iteration).trajectories
            lags.append(lag_metrics(batch, version=iteration - 1)["lag_max"])
            policy.version = iteration  # trained and synchronised
    assert max(lags) == 2.0, "the first iterations after a start play ahead of the weights"
    assert min(lags) >= 0.0


def test_the_next_iteration_is_played_while_this_one_is_trained_on():
    trained, steps = threading.Event(), collections.Counter()

    def delay(seed, turn):
        assert not trained.is_set(), "played after training"
        steps[seed] += 1
        return 0.0

    with stream(max_lag=1, delay=delay, length=4) as episodes:
        episodes.advance(0)
        episodes.take(1)
        deadline = time.monotonic() + 20
        while any(steps[request.seed] < 4 for request in requests(2)) and time.monotonic() < deadline:
            time.sleep(0.01)
        trained.set()
        assert seeds(episodes.take(2)) == [request.seed for request in requests(2)]


def test_a_long_episode_holds_its_own_iteration_and_not_the_next_one():
    release = threading.Event()

    def delay(seed, turn):
        if seed == 1000:
            release.wait(10)
        return 0.0

    with stream(max_lag=1, delay=delay) as episodes:
        episodes.advance(0)
        assert len(episodes.take(2).trajectories) == 6, "the second iteration waited for the first"
        release.set()
        assert seeds(episodes.take(1)) == [request.seed for request in requests(1)], "the long episode was dropped"


def test_a_failure_reaches_whoever_takes_the_iteration():
    with stream(fail_step=lambda seed, turn: seed == 2003) as episodes:
        episodes.advance(0)
        assert len(episodes.take(1).trajectories) == 6
        with pytest.raises(CollectionError, match="the sandbox died"):
            episodes.take(2)


def test_missing_episodes_can_be_played_again():
    broken = {2003}
    with stream(fail_step=lambda seed, turn: seed in broken, allow_missing=True) as episodes:
        episodes.advance(0)
        batch = episodes.take(2)
        assert batch.missing == (3,) and len(batch.failed) == 1
        broken.clear()
        assert seeds(episodes.replay(2, [requests(2)[3]])) == [2003]


def test_closing_ends_episodes_that_would_go_on_forever():
    with stream(ending="never", delay=lambda seed, turn: 0.005) as episodes:
        episodes.advance(0)
        time.sleep(0.05)
        started = time.perf_counter()
        episodes.close()
        assert time.perf_counter() - started < 2.0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("envgym-stream")]


def test_closing_ends_episodes_whose_iteration_somebody_was_interrupted_in_waiting_for():
    with stream(ending="never", delay=lambda seed, turn: 0.005) as episodes:
        episodes.advance(0)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                episodes.take(1)
        finally:
            signal.signal(signal.SIGALRM, previous)
        episodes.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("envgym-stream")]


def test_an_iteration_cannot_be_taken_before_it_may_start_or_twice():
    with stream(max_lag=1) as episodes:
        episodes.advance(0)
        with pytest.raises(ValueError, match="iteration 3 is not being played"):
            episodes.take(3)
        episodes.take(1)
        with pytest.raises(ValueError, match="iteration 1 is not being played"):
            episodes.take(1)


# -- how old the weights were ------------------------------------------------------------------------------------------


def turn(*spans: tuple[int, int]) -> Turn:
    """A turn whose tokens come in runs of (count, version)."""
    placed, start = [], 0
    for count, version in spans:
        placed.append(VersionSpan(start, start + count, version))
        start += count
    return Turn("o", "a", 0.0, action_ids=tuple(range(start)), version_spans=tuple(placed))


def episode(*turns: Turn, failure: str | None = None) -> Trajectory:
    return Trajectory("test/X-v0", 0, turns, terminated=failure is None, truncated=False, failure=failure)


def test_tokens_of_the_present_weights_have_no_lag():
    assert lag_metrics([episode(turn((5, 3)))], version=3) == {
        "lag_mean": 0.0,
        "lag_max": 0.0,
        "stale_share": 0.0,
        "mixed_turns": 0.0,
    }


def test_lag_is_weighted_by_tokens_and_counts_a_turn_across_a_sync_as_mixed():
    # Ten tokens: six of version 2 (lag 2), one of version 3 (lag 1), three of version 4 (lag 0).
    metrics = lag_metrics([episode(turn((6, 2), (1, 3)), turn((3, 4)))], version=4)
    assert metrics == {
        "lag_mean": pytest.approx(13 / 10),
        "lag_max": 2.0,
        "stale_share": pytest.approx(0.7),
        "mixed_turns": pytest.approx(0.5),
    }


def test_turns_without_tokens_do_not_count():
    assert lag_metrics([episode(Turn("o", "a", 0.0))], version=9)["lag_max"] == 0.0


def test_what_was_dropped_is_counted_by_length():
    dropped = [episode(turn((4, 0)), failure="x"), episode(turn((1, 0)), turn((2, 0)), turn((3, 0)), failure="y")]
    assert dropped_metrics(dropped) == {
        "dropped": 2.0,
        "dropped_turns_mean": 2.0,
        "dropped_turns_max": 3.0,
        "dropped_tokens": 10.0,
    }
    assert dropped_metrics([])["dropped_turns_mean"] == 0.0
