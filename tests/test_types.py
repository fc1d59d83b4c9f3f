"""Trajectories survive JSON unchanged, and cannot say contradictory things."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.types import SamplingParams, Trajectory, TruncationReason, Turn, VersionSpan

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def turns(draw):
    action_ids = draw(ids)
    return Turn(
        observation=draw(st.text()),
        action=draw(st.text()),
        reward=draw(finite),
        reward_components=draw(st.dictionaries(st.text(), finite, max_size=3)),
        observation_ids=draw(ids),
        action_ids=action_ids,
        behavior_logprobs=tuple(draw(finite) for _ in action_ids),
        version_spans=(VersionSpan(0, len(action_ids), draw(st.integers(0, 9))),),
        support=draw(st.none() | st.just(tuple((i, i + 1) for i in action_ids))),
        finish_reason=draw(st.sampled_from(["stop", "length", "context", "abort"])),
        executed=draw(st.booleans()),
        action_error=draw(st.none() | st.text()),
        generate_s=draw(finite),
    )


@st.composite
def trajectories(draw):
    ending = draw(st.sampled_from(["terminated", "truncated", "failed"]))
    return Trajectory(
        env_id=draw(st.text()),
        seed=draw(st.integers(0, 2**63)),
        turns=tuple(draw(st.lists(turns(), max_size=3))),
        terminated=ending == "terminated",
        truncated=ending == "truncated",
        truncation_reason=draw(st.sampled_from(list(TruncationReason))) if ending == "truncated" else None,
        final_observation=draw(st.text()),
        final_observation_ids=draw(ids),
        success=draw(st.none() | st.booleans()),
        failure=draw(st.text()) if ending == "failed" else None,
        info=draw(st.dictionaries(st.text(), json_values, max_size=3)),
    )


@settings(max_examples=60, deadline=None)
@given(trajectories())
def test_a_trajectory_equals_what_its_json_line_restores(trajectory):
    line = trajectory.to_json()
    assert "\n" not in line
    assert Trajectory.from_json(line) == trajectory


def test_a_trajectory_with_a_nan_reward_is_not_written():
    trajectory = Trajectory("e", 0, (Turn("o", "a", float("nan")),), terminated=True, truncated=False)
    with pytest.raises(ValueError, match=r"not JSON-serialisable|JSON compliant"):
        trajectory.to_json()


def test_a_trajectory_with_an_object_in_info_is_not_written():
    trajectory = Trajectory("e", 3, (), terminated=True, truncated=False, info={"x": object()})
    with pytest.raises(ValueError, match=r"trajectory of e \(seed 3\) is not JSON-serialisable"):
        trajectory.to_json()


@pytest.mark.parametrize("line", ["", "[]", "{", json.dumps({"turns": []}), json.dumps({"turns": [{"x": 1}]})])
def test_a_line_that_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError, match="not a trajectory record"):
        Trajectory.from_json(line)


@pytest.mark.parametrize(
    "fields",
    [
        {"terminated": True, "truncated": True, "truncation_reason": TruncationReason.MAX_TURNS},
        {"terminated": False, "truncated": True},
        {"terminated": True, "truncated": False, "truncation_reason": TruncationReason.MAX_TURNS},
        {"terminated": False, "truncated": False},
        {"terminated": True, "truncated": False, "failure": "x"},
    ],
)
def test_contradictory_endings_cannot_be_recorded(fields):
    with pytest.raises(AssertionError):
        Trajectory("e", 0, (), **fields)


def test_the_token_stream_masks_exactly_the_sampled_tokens():
    first = Turn("o", "a", 0.1, {"x": 0.1}, observation_ids=(1, 2), action_ids=(3,), behavior_logprobs=(-1.0,))
    second = Turn(
        "o", "b", 0.5, {"x": 0.2, "y": 0.3}, observation_ids=(4,), action_ids=(5, 6), behavior_logprobs=(-1, -2)
    )
    trajectory = Trajectory("e", 0, (first, second), terminated=True, truncated=False, final_observation_ids=(7,))
    assert trajectory.token_stream() == ([1, 2, 3, 4, 5, 6, 7], [False, False, True, False, True, True, False])
    assert trajectory.num_tokens == 7 and trajectory.num_action_tokens == 3
    assert trajectory.total_reward == pytest.approx(0.6)
    assert trajectory.reward_components == pytest.approx({"x": 0.3, "y": 0.3})
    assert trajectory.ending == "terminated"


@pytest.mark.parametrize(
    "fields",
    [{"max_new_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}],
)
def test_sampling_params_out_of_range_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        SamplingParams(**fields)
