"""The lag of a batch, and what was left out of it."""

import pytest

from envgym.rollout.staleness import dropped_metrics, lag_metrics
from envgym.types import Trajectory, Turn, VersionSpan


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
