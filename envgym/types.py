"""The vocabulary: what one turn and one episode leave behind, and how an episode can end.

Everything here is frozen and made of plain Python values, so that a trajectory can cross threads and processes and
round-trip through JSON without loss. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Literal

FinishReason = Literal["stop", "length", "context", "abort"]
"""How a generation ended: at a stop token, at `max_new_tokens`, at the end of the context window, or aborted."""


class TruncationReason(StrEnum):
    """Why an episode was cut although its task had not ended. A truncation is bootstrapped, a termination is not."""

    MAX_TURNS = "max_turns"
    RESPONSE_LENGTH = "response_length"
    """A turn was cut in mid-generation by the token limit of a turn."""
    TOKEN_BUDGET = "token_budget"
    CONTEXT_OVERFLOW = "context_overflow"
    TIME_LIMIT = "time_limit"
    ENVIRONMENT = "environment"


_MIN_TEMPERATURE, _MAX_TEMPERATURE, _MIN_TOP_P = 0.001, 1e6, 1e-6


def _is_real(value: Any) -> bool:
    """Whether a value is a finite number; numpy's are, a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _whole_number(name: str, value: Any, lowest: int) -> int:
    """The value as an int, if it is one that fits 32 bits, which is what engines hold it in."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not lowest <= int(value) < 2**31:
        raise ValueError(f"{name} must be a whole number from {lowest} to 2**31 - 1, got {value!r}")
    return int(value)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a policy draws tokens.

    Attributes:
        max_new_tokens: Most tokens of one turn, the end-of-turn token included; from 1 to 2**31 - 1.
        temperature: Divides the logits; 0 is greedy play (log-probabilities are then those of temperature 1), anything
            else lies between 0.001 and 1e6. Below that engines differ: logits overflow in one, another plays greedily.
        top_k: Keep the k most probable tokens; 0 keeps all, at most 2**31 - 1.
        top_p: Keep the smallest set of most probable tokens whose probability reaches p, from 1e-6; 1 keeps all.
        stop_token_ids: A turn ends when one of these is sampled; the token belongs to the turn.

    Raises:
        ValueError: A value is of another type (a bool or a string is no number) or out of its range.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, lowest in (("max_new_tokens", 1), ("top_k", 0)):
            self._set(name, _whole_number(name, getattr(self, name), lowest))
        temperature, top_p = self.temperature, self.top_p
        if not _is_real(temperature) or (temperature != 0 and not _MIN_TEMPERATURE <= temperature <= _MAX_TEMPERATURE):
            raise ValueError(
                f"temperature must be 0 (greedy) or a number from {_MIN_TEMPERATURE} to {_MAX_TEMPERATURE:g}, "
                f"got {temperature!r}"
            )
        if not _is_real(top_p) or not _MIN_TOP_P <= top_p <= 1:
            raise ValueError(
                f"top_p must be a number from {_MIN_TOP_P:g} to 1 (off), got {top_p!r}; for the most probable token "
                "alone use temperature=0"
            )
        self._set("temperature", float(temperature))
        self._set("top_p", float(top_p))
        if isinstance(self.stop_token_ids, str | bytes) or not isinstance(self.stop_token_ids, Iterable):
            raise ValueError(f"stop_token_ids must be a tuple of token ids, got {self.stop_token_ids!r}")
        self._set("stop_token_ids", tuple(_whole_number("stop_token_ids", id, 0) for id in self.stop_token_ids))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def has_support(self) -> bool:
        """Whether the sampled support differs from the whole vocabulary and is therefore recorded."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start <= k < end` of a turn were sampled by the weights of `version`."""

    start: int
    end: int
    version: int


def append_span(spans: list[VersionSpan], span: VersionSpan) -> None:
    """Appends a span, or lengthens the last one where the new one goes on with the same version."""
    if spans and spans[-1].version == span.version and spans[-1].end == span.start:
        span = VersionSpan(spans.pop().start, span.end, span.version)
    spans.append(span)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy returns for one prompt.

    Attributes:
        token_ids: The sampled tokens, the stop token included when one was sampled.
        logprobs: Behavior log-probability of each token: under the distribution it was drawn from, that is after
            temperature and renormalised over `support` where one is recorded (natural log).
        finish_reason: How the generation ended.
        version_spans: Half-open spans over `token_ids` that name the weights which sampled them.
        support: For each token the ids that could have been drawn, when top-k or top-p cut the vocabulary.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...] = ()
    support: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs), "every sampled token needs its log-probability"
        assert self.support is None or len(self.support) == len(self.token_ids), "every sampled token needs its support"


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation, one policy message and the environment's reply to it.

    The token stream of an episode is `observation_ids + action_ids` of every turn in order, then the trajectory's
    `final_observation_ids`. Worked example, a turn of the higher-lower game (`|` marks the template)::

        observation "1-64"     observation_ids = [|im_start| user \\n 1 - 6 4 |im_end| \\n |im_start| assistant \\n]
        action      "32"       action_ids      = [3 2 |im_end|]      behavior_logprobs has 3 entries
        reward       0.17      reward_components = {"information": 0.17}

    Attributes:
        observation: Text the policy saw at this turn (for the first turn without the system prompt).
        action: Text of the policy's message, without template tokens.
        reward: Reward of the environment step the action caused; 0.0 when the turn was cut and never executed.
        reward_components: Named parts of the reward; they sum to it.
        observation_ids: Tokens added to the prompt since the last action (template and system prompt included).
        action_ids: Sampled tokens, the end-of-turn token included. Empty for agents without tokens.
        behavior_logprobs: See `Completion.logprobs`; empty or one for each action token.
        version_spans: See `Completion.version_spans`.
        support: See `Completion.support`.
        finish_reason: See `Completion.finish_reason`; "stop" for agents without tokens.
        executed: Whether the action reached `env.step`; false for a turn cut in mid-generation.
        action_error: What was wrong with the action, in the environment's words, if anything.
        role: Whose message the observation was: "user" or "tool".
        generate_s: Seconds spent in waiting for the policy.
        step_s: Seconds spent in `env.step`.
    """

    observation: str
    action: str
    reward: float
    reward_components: Mapping[str, float] = field(default_factory=dict)
    observation_ids: tuple[int, ...] = ()
    action_ids: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    version_spans: tuple[VersionSpan, ...] = ()
    support: tuple[tuple[int, ...], ...] | None = None
    finish_reason: FinishReason = "stop"
    executed: bool = True
    action_error: str | None = None
    role: str = "user"
    generate_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The immutable record of one episode, from reset to end.

    Exactly one of three holds: it ended (`terminated`, or `truncated` with a `truncation_reason`), or it failed
    (`failure` says how; a failed episode is counted, never scored and never trained on). When an environment sets both
    flags on one step, `terminated` wins and `truncated` is stored as false.

    Attributes:
        env_id: Registered id of the environment.
        seed: The seed that `reset` was given.
        turns: The turns in order.
        terminated: The task itself ended.
        truncated: The episode was cut from outside the task; the value of its last state is bootstrapped.
        truncation_reason: Why it was cut; set if and only if `truncated`.
        final_observation: Text the last executed step returned; empty when the last turn was cut in mid-generation.
        final_observation_ids: Its tokens, rendered as the next prompt would be; empty for agents without tokens.
        final_role: Whose message the final observation was.
        success: Whether the task was solved; None where the environment has no such notion.
        failure: Error of the infrastructure that ended the episode, if one did.
        options: The options that `reset` was given.
        info: What else the environment reported on the last step (JSON-serialisable).
    """

    env_id: str
    seed: int
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    truncation_reason: TruncationReason | None = None
    final_observation: str = ""
    final_observation_ids: tuple[int, ...] = ()
    final_role: str = "user"
    success: bool | None = None
    failure: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert not (self.terminated and self.truncated), "terminated wins: a terminated trajectory is not truncated"
        assert self.truncated == (self.truncation_reason is not None), "a truncation, and only one, has a reason"
        assert (self.failure is not None) != (self.terminated or self.truncated), "an episode ends or fails, not both"

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the step rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def reward_components(self) -> dict[str, float]:
        """Sum of each reward component over the episode."""
        totals: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.reward_components.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    @property
    def ending(self) -> str:
        """`"terminated"`, the truncation reason, or `"failed"`."""
        if self.failure is not None:
            return "failed"
        return "terminated" if self.truncation_reason is None else self.truncation_reason.value

    @property
    def num_action_tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(len(turn.action_ids) for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the whole stream, prompts and observations included."""
        return sum(len(t.observation_ids) + len(t.action_ids) for t in self.turns) + len(self.final_observation_ids)

    def token_stream(self) -> tuple[list[int], list[bool]]:
        """Token ids of the whole episode and its `action_mask` (true on sampled tokens), of equal length."""
        ids: list[int] = []
        mask: list[bool] = []
        for turn in self.turns:
            ids += turn.observation_ids
            mask += [False] * len(turn.observation_ids)
            ids += turn.action_ids
            mask += [True] * len(turn.action_ids)
        ids += self.final_observation_ids
        mask += [False] * len(self.final_observation_ids)
        return ids, mask

    def to_json(self) -> str:
        """One line of `trajectories.jsonl`; `from_json` restores an equal trajectory.

        Raises:
            ValueError: A reward or log-probability is not finite, or `info` holds a value JSON cannot express.
        """
        try:
            return json.dumps(dataclasses.asdict(self), separators=(",", ":"), allow_nan=False)
        except TypeError as error:
            raise ValueError(
                f"the trajectory of {self.env_id} (seed {self.seed}) is not JSON-serialisable: {error}"
            ) from error

    @classmethod
    def from_json(cls, line: str) -> Trajectory:
        """Restores what `to_json` wrote.

        Raises:
            ValueError: The line is not such a record.
        """
        try:
            data = json.loads(line)
            data["turns"] = tuple(_turn_from_json(turn) for turn in data["turns"])
            data["final_observation_ids"] = tuple(data["final_observation_ids"])
            if data["truncation_reason"] is not None:
                data["truncation_reason"] = TruncationReason(data["truncation_reason"])
            return cls(**data)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a trajectory record ({error}): {line[:80]!r}") from error


def _turn_from_json(data: dict[str, Any]) -> Turn:
    data["observation_ids"] = tuple(data["observation_ids"])
    data["action_ids"] = tuple(data["action_ids"])
    data["behavior_logprobs"] = tuple(data["behavior_logprobs"])
    data["version_spans"] = tuple(VersionSpan(**span) for span in data["version_spans"])
    if data["support"] is not None:
        data["support"] = tuple(tuple(ids) for ids in data["support"])
    return Turn(**data)
