"""Environments and a policy that do as they are told, for the tests of roll-out, evaluation and training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

import envgym
from envgym import Step, TextEnv
from envgym.types import Completion, SamplingParams, TruncationReason, VersionSpan


class Countdown(TextEnv):
    """Ends after `length` turns; the observation is a number drawn at reset, then each action in upper case.

    Args:
        length: Turns until it ends.
        ending: "terminated", "truncated", "both", or "never".
        fail_reset, fail_step: Decide from the seed (and the turn) whether to raise.
        delay: Seconds to sleep in a step, from the seed and the turn.
        role: Role of the observations after the first.
    """

    system_prompt = "Count."

    def __init__(
        self,
        *,
        length: int = 3,
        ending: str = "terminated",
        fail_reset: Callable[[int], bool] = lambda seed: False,
        fail_step: Callable[[int, int], bool] = lambda seed, turn: False,
        delay: Callable[[int, int], float] = lambda seed, turn: 0.0,
        role: str = "user",
        reward: float = 0.5,
        observation: Callable[[str], str] = str.upper,
    ) -> None:
        super().__init__()
        self.length, self.ending, self.role, self.reward = length, ending, role, reward
        self.fail_reset, self.fail_step, self.delay, self.observation = fail_reset, fail_step, delay, observation
        self.turn = self.seed = 0
        self.actions: list[str] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.seed, self.actions = 0, int(seed or 0), []
        if self.fail_reset(self.seed):
            raise OSError("the sandbox did not start")
        return f"{self.np_random.integers(1000)}", {"success": False, "options": dict(options or {})}

    def step(self, action: str) -> Step:
        self.turn += 1
        self.actions.append(action)
        time.sleep(self.delay(self.seed, self.turn))
        if self.fail_step(self.seed, self.turn):
            raise OSError("the sandbox died")
        text, components = self.observation(action), {"turn": self.reward, "length": 0.0}
        if self.turn < self.length or self.ending == "never":
            return Step.running(text, components, role=self.role, success=False)
        if self.ending == "truncated":
            return Step.truncation(text, components, reason=TruncationReason.TIME_LIMIT, success=False, role=self.role)
        step = Step.terminal(text, components, success=True, role=self.role, note="over")
        if self.ending == "both":
            return step._replace(truncated=True, info={**step.info, "truncation_reason": "time_limit"})
        return step

    def close(self) -> None:
        self.closed = True


def registered(name: str, entry_point: Any = Countdown, **settings: Any) -> str:
    """Registers an environment under `test/Name-v0`, anew if it was, and returns the id."""
    env_id = f"test/{name}-v0"
    gymnasium.registry.pop(env_id, None)
    envgym.register(env_id, entry_point, **settings)
    return env_id


class ScriptedPolicy:
    """A policy that samples what it is told: `replies(prompt_ids, session_seed)` gives tokens and a finish reason.

    It keeps every prompt, so that a test can compare them with the trajectory.
    """

    version, vocab_size = 3, 512

    def __init__(
        self, replies: Callable[[Sequence[int], int], tuple[Sequence[int], str]], *, context_length: int = 256
    ) -> None:
        self.replies = replies
        self.context_length = context_length
        self.sessions: dict[int, int] = {}
        self.num_opened = 0
        self.prompts: dict[int, list[list[int]]] = {}

    def open_session(self, *, seed: int) -> int:
        self.num_opened += 1
        self.sessions[self.num_opened] = seed
        return self.num_opened

    def close_session(self, session: int) -> None:
        self.sessions.pop(session, None)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: int) -> Completion:
        assert session in self.sessions, "generated in a session that is not open"
        assert len(prompt_ids) < self.context_length
        self.prompts.setdefault(session, []).append(list(prompt_ids))
        ids, finish = self.replies(prompt_ids, self.sessions[session])
        ids = tuple(ids)
        rng = np.random.default_rng(len(prompt_ids))
        logprobs = tuple(float(-x) for x in rng.random(len(ids)))
        return Completion(ids, logprobs, finish, (VersionSpan(0, len(ids), self.version),))  # type: ignore[arg-type]
