"""Plays one episode, from reset to its end, and records it: the one path of evaluation and training."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from envgym.agent import Action, Agent, Player, PromptTooLong
from envgym.env import Step, TextEnv
from envgym.errors import UnplayableError
from envgym.registry import make
from envgym.rollout.loop import run_to_end
from envgym.types import Completion, Trajectory, TruncationReason, Turn
from envgym.wrappers import EpisodeGuard, MaxTurns

Call = Callable[..., Awaitable[Any]]
"""Awaits a blocking function: `await call(function, *args)`."""

_CUTS = {"length": TruncationReason.RESPONSE_LENGTH, "context": TruncationReason.CONTEXT_OVERFLOW}
_NO_TOKENS = Completion(token_ids=(), logprobs=(), finish_reason="stop")


@dataclass(slots=True)
class _Record:
    """An episode while it runs."""

    env_id: str
    seed: int
    options: Mapping[str, Any]
    turns: list[Turn] = field(default_factory=list)

    def ended(self, **ending: Any) -> Trajectory:
        return Trajectory(self.env_id, self.seed, tuple(self.turns), options=self.options, **ending)


def run_episode(
    env: TextEnv | str,
    agent: Agent | Callable[[str], str],
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Plays one episode and returns its record.

    Args:
        env: An environment, or the id of a registered one (made and closed here).
        agent: An agent, or a function from an observation to an action.
        seed: Seed of the environment's reset and of the agent's own randomness.
        options: Options for the environment's reset.

    Returns:
        The trajectory. An environment or agent that raised leaves one whose `failure` says what happened.

    Raises:
        ValueError: The id is unknown, or the agent cannot play this environment.
    """
    made = make(env) if isinstance(env, str) else env
    if made.unwrapped is made:  # bare: its turn limit and the contract hold all the same
        made = cast(TextEnv, EpisodeGuard(MaxTurns(made)))
    player_of = agent if isinstance(agent, Agent) else FunctionAgent(agent)

    async def call(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    try:
        return run_to_end(play_episode(made, player_of, seed=seed, options=options, call=call))
    finally:
        if isinstance(env, str):
            made.close()


async def play_episode(
    env: TextEnv,
    agent: Agent,
    *,
    seed: int,
    call: Call,
    agent_seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    overlong_penalty: float = 0.0,
    after_start: Callable[[], None] = lambda: None,
    before_close: Callable[[], None] = lambda: None,
) -> Trajectory:
    """Plays one episode as a coroutine; see `run_episode`.

    Args:
        env: The environment; nobody else may step it meanwhile.
        agent: What plays.
        seed: Seed of the environment's reset.
        call: How blocking calls into the environment are awaited.
        agent_seed: Seed of the agent's own randomness; `seed` when None.
        options: Options for the environment's reset.
        overlong_penalty: Taken off the reward of a turn that is cut at its token limit, as the component "overlong".
        after_start: Called once the agent has started its player; not when the reset failed.
        before_close: Called before that player is closed.

    Raises:
        ValueError: The agent cannot play this environment, or not even the first prompt fits its context.
    """
    env_id = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    record = _Record(env_id, seed, dict(options or {}))
    try:
        observation, info = await call(_reset, env, seed, dict(options) if options else None)
    except Exception as error:
        return record.ended(terminated=False, truncated=False, failure=_describe(error))
    player = agent.start(env, seed=seed if agent_seed is None else agent_seed)
    try:
        after_start()
        return await _play(env, player, record, observation, info, call, overlong_penalty)
    except UnplayableError:
        raise
    except Exception as error:
        return record.ended(terminated=False, truncated=False, failure=_describe(error))
    finally:
        before_close()
        with contextlib.suppress(Exception):  # the episode is over; what it gave must not be lost
            player.close()


async def _play(
    env: TextEnv,
    player: Player,
    record: _Record,
    observation: str,
    info: Mapping[str, Any],
    call: Call,
    overlong_penalty: float,
) -> Trajectory:
    terminal_limits = _terminal_limits(env)
    while True:
        started = time.perf_counter()
        try:
            reply = player.act(observation, info)
            if inspect.isawaitable(reply):
                reply = await reply
        except PromptTooLong as overflow:
            ending = _cut(TruncationReason.CONTEXT_OVERFLOW, terminal_limits, info)
            return record.ended(
                **ending,
                final_observation=observation,
                final_observation_ids=overflow.observation_ids,
                final_role=info.get("role", "user"),
            )
        action = _as_action(cast("str | Action", reply))
        sampled = time.perf_counter()
        turn = Turn(
            observation=observation,
            action=action.text,
            reward=0.0,
            observation_ids=action.observation_ids,
            action_ids=action.completion.token_ids,
            behavior_logprobs=action.completion.logprobs,
            version_spans=action.completion.version_spans,
            support=action.completion.support,
            finish_reason=action.completion.finish_reason,
            executed=False,
            role=info.get("role", "user"),
            generate_s=sampled - started,
        )
        if turn.finish_reason == "abort":
            raise RuntimeError("the policy aborted this turn")
        if turn.finish_reason in _CUTS:
            # The turn was cut in mid-generation: there is no action to execute and no following observation.
            if turn.finish_reason == "length" and overlong_penalty:
                turn = dataclasses.replace(
                    turn, reward=-overlong_penalty, reward_components={"overlong": -overlong_penalty}
                )
            record.turns.append(turn)
            return record.ended(**_cut(_CUTS[turn.finish_reason], terminal_limits, info))
        step: Step = await call(env.step, action.text)
        record.turns.append(_executed(turn, step, time.perf_counter() - sampled))
        observation, info = step.observation, step.info
        if step.terminated or step.truncated:
            reason = None if step.terminated else _truncation_reason(info)
            return record.ended(
                terminated=bool(step.terminated),
                truncated=not step.terminated,
                truncation_reason=reason,
                final_observation=observation,
                final_observation_ids=player.final_observation_ids(observation, info),
                final_role=info.get("role", "user"),
                success=_success(info),
                info=_rest(info),
            )


def _reset(env: TextEnv, seed: int, options: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
    return env.reset(seed=seed, options=options)


def _terminal_limits(env: TextEnv) -> frozenset[TruncationReason]:
    """Limits that end the task; the registration's (kept by its wrapper) go before the class attribute."""
    if env.has_wrapper_attr("terminal_limits"):
        return frozenset(env.get_wrapper_attr("terminal_limits"))
    return frozenset()


def _cut(
    reason: TruncationReason, terminal_limits: frozenset[TruncationReason], info: Mapping[str, Any]
) -> dict[str, Any]:
    """How an episode ends at a limit that the environment did not reach by itself."""
    terminal = reason in terminal_limits
    success = _success(info)
    if terminal and success is not None:
        success = False
    return {
        "terminated": terminal,
        "truncated": not terminal,
        "truncation_reason": None if terminal else reason,
        "success": success,
        "info": _rest(info),
    }


def _truncation_reason(info: Mapping[str, Any]) -> TruncationReason:
    if "truncation_reason" not in info:
        raise ValueError("the environment truncated without info['truncation_reason']; return Step.truncation(...)")
    return TruncationReason(info["truncation_reason"])


def _success(info: Mapping[str, Any]) -> bool | None:
    success = info.get("success")
    return None if success is None else bool(success)


def _rest(info: Mapping[str, Any]) -> dict[str, Any]:
    """What `info` holds beside the entries that have a place of their own in the record.

    Raises:
        ValueError: Something in it cannot be written down.
    """
    placed = ("reward_components", "truncation_reason", "success", "role", "action_error")
    rest = {key: value for key, value in info.items() if key not in placed}
    try:
        # A copy, so that the record stays what it is whatever the environment does to its info later.
        return json.loads(json.dumps(rest, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"everything in info must be JSON-serialisable: {error}") from error


def _executed(turn: Turn, step: Step, seconds: float) -> Turn:
    reward = float(step.reward)
    components = step.info.get("reward_components")
    if components is None:
        components = {"reward": reward} if reward else {}
    return dataclasses.replace(
        turn,
        reward=reward,
        reward_components={str(name): float(value) for name, value in components.items()},
        executed=True,
        action_error=step.info.get("action_error"),
        step_s=seconds,
    )


def _as_action(reply: str | Action) -> Action:
    if isinstance(reply, Action):
        return reply
    if not isinstance(reply, str):
        raise TypeError(f"an agent must answer with a string, got {type(reply).__name__}")
    return Action(reply, (), _NO_TOKENS)


def _describe(error: Exception) -> str:
    """One line for the record: the error and the line of code it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class FunctionAgent(Agent):
    """A function from an observation to an action, as an agent.

    Args:
        function: Gets the observation, returns the action.
        name: What evaluations call it.
    """

    def __init__(self, function: Callable[[str], str], *, name: str | None = None) -> None:
        if not callable(function):
            raise ValueError(f"an agent is an envgym Agent or a function of an observation, got {function!r}")
        self.function = function
        self.name = name or str(getattr(function, "__name__", "function"))

    def start(self, env: TextEnv, *, seed: int) -> Player:
        return _FunctionPlayer(self.function)


class _FunctionPlayer(Player):
    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        return self._function(observation)
