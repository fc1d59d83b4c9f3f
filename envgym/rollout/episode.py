"""One episode, from reset to its end, and its record: the one path of evaluation and training."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from envgym.agent import Action, Agent, Player, PromptTooLong
from envgym.env import Step, TextEnv, ending_fields, env_id_of, other_info, plain_json, success_at_end
from envgym.errors import RewardError, StepTimeoutError, UnplayableError
from envgym.registry import make
from envgym.rollout.threads import run_to_end
from envgym.types import Completion, FinishReason, Trajectory, TruncationReason, Turn, VersionSpan
from envgym.wrappers import EpisodeGuard, MaxTurns
from envgym.wrappers.guard import reward_fields

Call = Callable[..., Awaitable[Any]]
"""Awaits a blocking function: `await call(function, *args)`; see `WorkerThreads.call`, also for `if_abandoned`."""

_NO_TOKENS = Completion(token_ids=(), logprobs=(), finish_reason="stop")
_FINISH_REASONS = get_args(FinishReason)
_CUTS = {"length": TruncationReason.RESPONSE_LENGTH, "context": TruncationReason.CONTEXT_OVERFLOW}


@dataclass(slots=True)
class _Record:
    """An episode while it runs."""

    env_id: str
    seed: int
    options: Mapping[str, Any]
    turns: list[Turn] = field(default_factory=list)

    def ended(self, **ending: Any) -> Trajectory:
        return Trajectory(self.env_id, self.seed, tuple(self.turns), options=self.options, **ending)

    def failed(self, error: BaseException) -> Trajectory:
        return self.ended(terminated=False, truncated=False, failure=_describe(error))


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
        options: Options for the environment's reset; JSON values.

    Returns:
        The trajectory. An environment or agent that raised leaves one whose `failure` says what happened.

    Raises:
        UnplayableError: The agent says that it cannot play this environment, or the first prompt does not fit its
            context.
        ValueError: The id is unknown, or the options are no JSON values.
    """
    made = make(env) if isinstance(env, str) else env
    if made.unwrapped is made:  # bare: its turn limit and the contract hold all the same
        made = cast(TextEnv, EpisodeGuard(MaxTurns(made)))
    player_of = agent if isinstance(agent, Agent) else FunctionAgent(agent)

    async def call(function: Callable[..., Any], *args: Any, if_abandoned: Any = None) -> Any:
        return function(*args)  # here, where nothing else waits: an interrupt reaches it, and a time limit would not

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
    call_agent: Call | None = None,
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
        call_agent: How `act` is awaited of players that block; `call` when None. It is never called again for a player
            before it is back, so that one player is in one thread at a time.
        agent_seed: Seed of the agent's own randomness; `seed` when None.
        options: Options for the environment's reset.
        overlong_penalty: Taken off the reward of a turn that is cut at its token limit, as the component "overlong".
        after_start: Called once the agent has started its player; not when the reset failed.
        before_close: Called before that player is closed.

    Raises:
        PromptLengthError: The first prompt does not fit the agent's context.
        UnplayableError: The agent says that it cannot play this environment.
        ValueError: The options are no JSON values.
    """
    # The record keeps a copy of its own: neither the caller nor the environment can change what is written down.
    record = _Record(env_id_of(env), seed, plain_json(dict(options or {}), "options"))
    try:
        observation, info = await call(_reset, env, seed, copy.deepcopy(dict(options)) if options else None)
    except Exception as error:
        return record.failed(error)
    try:
        player = agent.start(env, seed=seed if agent_seed is None else agent_seed)
        if not isinstance(player, Player):
            raise TypeError(f"the start of an agent must return a Player, got {type(player).__name__}")
    except UnplayableError:
        raise
    except Exception as error:
        return record.failed(error)
    playing = _ThreadedPlayer(player, call if call_agent is None else call_agent)
    try:
        after_start()
        return await _play_turns(env, playing, record, observation, info, call, overlong_penalty)
    except UnplayableError:
        raise
    except Exception as error:
        return record.failed(error)
    except (SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        return record.failed(error)  # raised by the agent, to which neither the process nor the task belongs
    finally:
        before_close()
        playing.close()


def failed_episode(env_id: str, seed: int, error: BaseException) -> Trajectory:
    """The record of an episode that an error kept from beginning."""
    return _Record(env_id, seed, {}).failed(error)


class _ThreadedPlayer:
    """A player, and how it is asked: at once, or in a thread where its `act` blocks."""

    def __init__(self, player: Player, call: Call) -> None:
        self.player = player
        self._call = call
        self._occupied = False

    async def act(self, observation: str, info: Mapping[str, Any]) -> Any:
        if self.player.blocking:
            try:
                reply = await self._call(self.player.act, observation, info, if_abandoned=lambda _: self._close())
            except asyncio.CancelledError:
                self._occupied = True  # the thread is still in it, and closes it when it is back
                raise
        else:
            reply = self.player.act(observation, info)
        return await reply if inspect.isawaitable(reply) else reply

    def close(self) -> None:
        if not self._occupied:
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # the episode is over; what it gave must not be lost
            self.player.close()


def _is_cancelled() -> bool:
    """Whether somebody cancelled the running task, rather than something in it raising as if."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _play_turns(
    env: TextEnv,
    playing: _ThreadedPlayer,
    record: _Record,
    observation: str,
    info: Mapping[str, Any],
    call: Call,
    overlong_penalty: float,
) -> Trajectory:
    terminal_limits = frozenset(env.get_wrapper_attr("terminal_limits"))  # the registration's go before the class's
    total = 0.0
    while True:
        started = time.perf_counter()
        try:
            action = as_action(await playing.act(observation, info))
        except PromptTooLong as overflow:
            ending = _cut(TruncationReason.CONTEXT_OVERFLOW, terminal_limits, env, info)
            return record.ended(
                **ending,
                final_observation=observation,
                final_observation_ids=as_token_ids(overflow.observation_ids, "observation_ids"),
                final_role=info.get("role", "user"),
            )
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
            return record.ended(**_cut(_CUTS[turn.finish_reason], terminal_limits, env, info))
        step: Step = await call(env.step, action.text)
        seconds = time.perf_counter() - sampled
        record.turns.append(dataclasses.replace(turn, executed=True, step_s=seconds, **reward_fields(step)))
        total += record.turns[-1].reward
        if not math.isfinite(total):
            raise RewardError(f"the rewards of the episode sum to {total}; keep them small enough to add up")
        observation, info = step.observation, step.info
        if step.terminated or step.truncated:
            final_ids = as_token_ids(playing.player.final_observation_ids(observation, info), "final_observation_ids")
            return record.ended(final_observation_ids=final_ids, **ending_fields(env, step))


def _reset(env: TextEnv, seed: int, options: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
    return env.reset(seed=seed, options=options)


def _cut(
    reason: TruncationReason, terminal_limits: frozenset[TruncationReason], env: TextEnv, info: Mapping[str, Any]
) -> dict[str, Any]:
    """How an episode ends at a limit that the environment did not reach by itself."""
    terminal = reason in terminal_limits
    success = success_at_end(env, info)
    if terminal and success is not None:
        success = False
    return {
        "terminated": terminal,
        "truncated": not terminal,
        "truncation_reason": None if terminal else reason,
        "success": success,
        "info": other_info(info),
    }


def _describe(error: BaseException) -> str:
    """One line for the record: the error and the line of code it came from."""
    if isinstance(error, StepTimeoutError):  # nobody knows which line that is
        return f"StepTimeoutError: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def as_action(reply: Any) -> Action:
    """An agent's answer as an `Action`.

    Args:
        reply: A string, or an `Action`.

    Raises:
        TypeError: It, or something in it, is of the wrong type.
        ValueError: A text that UTF-8 cannot encode, a log-probability that is not finite, or an unknown finish reason.
    """
    if isinstance(reply, str):
        return Action(_text(reply), (), _NO_TOKENS)
    if not isinstance(reply, Action):
        raise TypeError(f"an agent must answer with a string, got {type(reply).__name__}")
    if not isinstance(reply.text, str):
        raise TypeError(f"the text of an Action must be a string, got {type(reply.text).__name__}")
    if not isinstance(reply.completion, Completion):
        raise TypeError(f"the completion of an Action must be a Completion, got {type(reply.completion).__name__}")
    return Action(_text(reply.text), as_token_ids(reply.observation_ids, "observation_ids"), _checked(reply.completion))


def as_token_ids(ids: Any, what: str) -> tuple[int, ...]:
    """Token ids as a tuple.

    Raises:
        TypeError: They are no sequence of integers.
    """
    if not isinstance(ids, tuple | list):
        raise TypeError(f"{what} must be a tuple of integers, got {type(ids).__name__}")
    _check_all(ids, (int,), f"{what} must be integers")
    return tuple(ids)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"an agent's text must be encodable as UTF-8, but it holds {text[error.start]!r} at character "
            f"{error.start}; decode bytes with errors='replace'"
        ) from error
    return text


def _checked(completion: Completion) -> Completion:
    as_token_ids(completion.token_ids, "the token_ids of a Completion")
    _check_all(completion.logprobs, (float, int), "the logprobs of a Completion must be floats")
    if not all(map(math.isfinite, completion.logprobs)):
        raise ValueError("the logprobs of a Completion must be finite")
    if completion.finish_reason not in _FINISH_REASONS:
        raise ValueError(
            f"the finish_reason of a Completion must be one of {', '.join(_FINISH_REASONS)}, "
            f"got {completion.finish_reason!r}"
        )
    _check_all(completion.version_spans, (VersionSpan,), "the version_spans of a Completion must be VersionSpans")
    for ids in completion.support or ():
        _check_all(ids, (int,), "the support of a Completion must be integers")
    return completion


def _check_all(values: Iterable[Any], types: tuple[type, ...], requirement: str) -> None:
    for kind in set(map(type, values)):  # exactly of these types: what JSON writes, and no bool
        if kind not in types:
            raise TypeError(f"{requirement}, got {kind.__name__}")


class FunctionAgent(Agent):
    """A function from an observation to an action, as an agent.

    An `async def` function is awaited. Any other is taken to block: where many episodes are played at once it runs in
    worker threads, up to one for each episode, and is then called from several at a time. A function that keeps state
    must allow for that; an `Agent` need not, whose players have their own state and are each called by one thread at a
    time.

    Args:
        function: Gets the observation, returns the action, or something to await that gives it.
        name: What evaluations call it.

    Raises:
        ValueError: It cannot be called.
    """

    def __init__(self, function: Callable[[str], str | Awaitable[str]], *, name: str | None = None) -> None:
        if not callable(function):
            raise ValueError(f"an agent is an envgym Agent or a function of an observation, got {function!r}")
        self.function = function
        self.name = name or str(getattr(function, "__name__", "function"))

    def start(self, env: TextEnv, *, seed: int) -> Player:
        return _FunctionPlayer(self.function)


class _FunctionPlayer(Player):
    def __init__(self, function: Callable[[str], str | Awaitable[str]]) -> None:
        self._function = function
        call = getattr(function, "__call__", None)  # noqa: B004 - of an object with an async __call__
        self.blocking = not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call))

    def act(self, observation: str, info: Mapping[str, Any]) -> str | Awaitable[str]:  # type: ignore[override]
        return self._function(observation)
