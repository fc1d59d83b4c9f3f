"""What sampling can be asked for: the same in the engine's parameters and in the configuration of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from envgym.config import RolloutConfig
from envgym.engines.embedded.sampling import RowSampling, sample
from envgym.types import SamplingParams

REFUSED = {
    "temperature": [1e-300, 1e-39, 9e-4, -1.0, 1e7, float("inf"), float("nan"), True, "0.7", None],
    "top_p": [0.0, 1e-46, 1e-7, 1.0001, -0.5, float("inf"), float("nan"), True, "0.9"],
    "top_k": [-1, 2**31, 2**63, 10**30, 5.0, True, "5"],
    "max_new_tokens": [0, -3, 2**31, 16.0, 1.5, True, "16"],
    "stop_token_ids": [(1.0,), (True,), ("1",), (-1,), (2**31,), "12", 7, None],
}
TAKEN = {
    "temperature": [0.001, 1, 1.0, 1e6, np.float32(0.5)],
    "top_p": [1e-6, 0.5, 1, np.float64(0.25)],
    "top_k": [0, 1, 2**31 - 1, np.int64(5)],
    "max_new_tokens": [1, 2**31 - 1, np.int32(5)],
    "stop_token_ids": [(), (0, 2**31 - 1), [3, 4], (np.int64(3),)],
}
FIELDS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_new_tokens": "max_turn_tokens"}
"""Fields of `SamplingParams` that a run configures, and their names there."""


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_what_no_engine_can_sample_with_is_refused_by_name_and_value(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be") as caught:
        SamplingParams(**{name: value})
    assert repr(value) in str(caught.value) or name == "stop_token_ids"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in FIELDS for value in REFUSED[name]])
def test_a_run_refuses_the_same(name, value):
    with pytest.raises(ValidationError) as caught:
        RolloutConfig(**{FIELDS[name]: value})
    assert [error["loc"] for error in caught.value.errors()] == [(FIELDS[name],)]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in TAKEN.items() for value in values])
def test_the_bounds_are_taken_and_become_plain_numbers(name, value):
    taken = getattr(SamplingParams(**{name: value}), name)
    assert taken == (tuple(value) if name == "stop_token_ids" else value)
    kind = {"temperature": float, "top_p": float, "stop_token_ids": tuple}.get(name, int)
    assert type(taken) is kind
    assert kind is not tuple or all(type(token) is int for token in taken)
    if name in FIELDS and not isinstance(value, np.generic):
        assert getattr(RolloutConfig(**{FIELDS[name]: value}), FIELDS[name]) == value


def test_greedy_play_is_temperature_zero_and_not_for_training():
    assert SamplingParams(temperature=0).temperature == 0.0
    with pytest.raises(ValidationError, match="greater than 0"):
        RolloutConfig(temperature=0.0)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.001, 2**31 - 1, 1e-6), (1e6, 2**31 - 1, 1.0)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_extremes_give_finite_log_probabilities(temperature, top_k, top_p, scale):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    rows = RowSampling(*(np.array([v]) for v in (params.temperature, params.top_k, params.top_p)))
    logits = torch.tensor([[-3.0, 2.0, 1.0, -math.inf]]) * scale
    for uniform in (0.0, 0.5, 0.999):
        ids, logprobs, _ = sample(logits, torch.tensor([uniform]), rows)
        assert ids.item() in ((1,) if temperature < 1 else (0, 1, 2))
        assert logprobs.isfinite().item()
