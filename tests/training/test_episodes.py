"""An iteration's episodes: whole and in order, also after what plays them was lost and brought back."""

import pytest
import torch
from fakes import Countdown

from envgym.config import TrainConfig
from envgym.errors import CollectionError
from envgym.learner.distributed import process_group
from envgym.rollout.collector import Collection, Collector
from envgym.rollout.episode import FunctionAgent
from envgym.training.episodes import MAX_RECOVERIES, IterationEpisodes, merged
from envgym.types import Trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _world():
    with process_group(CPU):
        yield


def episode(seed: int, failure: str | None = None) -> Trajectory:
    return Trajectory("test/X-v0", seed, (), terminated=failure is None, truncated=False, failure=failure)


def seeds(collection: Collection) -> list[int]:
    return [trajectory.seed for trajectory in collection.trajectories]


def test_replayed_episodes_take_the_places_of_the_missing_ones():
    first = Collection((episode(10), episode(12)), (episode(11, "x"), episode(13, "x")), missing=(1, 3))
    again = Collection((episode(111), episode(113)))
    whole = merged(first, again)
    assert seeds(whole) == [10, 111, 12, 113]
    assert whole.missing == () and len(whole.failed) == 2


def test_what_is_missing_again_stays_missing():
    first = Collection((episode(10),), (), missing=(0, 2))
    again = Collection((episode(112),), (episode(110, "y"),), missing=(0,))
    whole = merged(first, again)
    assert seeds(whole) == [10, 112] and whole.missing == (0,) and len(whole.failed) == 1


class Play:
    """An agent on a server that may be down, and what brings it back."""

    def __init__(self, *, max_lag: int, back_after: int) -> None:
        self.down, self.recoveries, self.back_after = False, [], back_after
        config = {
            "run_dir": "unused",
            "env": {"id": "test/Countdown-v0"},
            "num_iterations": 3,
            "rollout": {"episodes_per_iteration": 6, "max_policy_lag": max_lag, "max_attempts": 1},
            "update": {"num_minibatches": 1},
            "policy": {"kind": "sglang"},
        }
        self.collectors: list[Collector] = []
        self.episodes = IterationEpisodes(
            TrainConfig.model_validate(config),
            self.make_collector,
            FunctionAgent(self.act),
            first=1,
            indices=range(6),
            device=CPU,
            recover=self.recover,
        )

    def make_collector(self) -> Collector:
        self.collectors.append(Collector(lambda: Countdown(length=1), concurrency=2, num_threads=2))
        return self.collectors[-1]

    def act(self, observation: str) -> str:
        if self.down:
            raise ConnectionError("no server")
        return observation

    def recover(self, iteration: int) -> None:
        self.recoveries.append(iteration)
        self.down = len(self.recoveries) < self.back_after

    def close(self) -> None:
        self.episodes.close()
        for collector in self.collectors:
            collector.close()


@pytest.mark.parametrize("max_lag", [0, 1])
@pytest.mark.parametrize("back_after", [1, 2])
def test_episodes_that_a_lost_server_took_are_played_again(max_lag, back_after):
    play = Play(max_lag=max_lag, back_after=back_after)
    try:
        play.down = True
        play.episodes.advance(0)
        collected = play.episodes.collect(1)
        assert seeds(collected) == [request.seed for request in play.episodes.requests(1)]
        assert len(collected.failed) == 6 * back_after, "every lost episode is on record"
        assert play.recoveries == [1] * back_after
    finally:
        play.close()


def test_a_server_that_never_comes_back_ends_the_run():
    play = Play(max_lag=0, back_after=100)
    try:
        play.down = True
        with pytest.raises(CollectionError, match=r"6 episodes of iteration 1 failed again and again; .*no server"):
            play.episodes.collect(1)
        assert len(play.recoveries) == MAX_RECOVERIES
    finally:
        play.close()


def test_without_trouble_nothing_is_recovered():
    play = Play(max_lag=1, back_after=1)
    try:
        for iteration in (1, 2, 3):
            play.episodes.advance(iteration - 1)
            assert len(play.episodes.collect(iteration).trajectories) == 6
        assert play.recoveries == []
    finally:
        play.close()
