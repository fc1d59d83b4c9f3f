"""Customer service after tau2-bench: the agent talks to a user and works on a database through tools."""

from __future__ import annotations

import math
import re
from typing import Any

from envgym.agent import Player
from envgym.env import Step, TextEnv
from envgym.environments.tau2.domain import TRANSFER, load_domain
from envgym.environments.tau2.episode import Episode
from envgym.environments.tau2.users import ChatUser, ModelUser, ScriptedUser, User
from envgym.errors import EpisodeOrderError
from envgym.spaces import TextSpace
from envgym.tools import CallError, ToolCall, format_call, parse_calls

ACTION_WEIGHT = 0.3
"""What all golden actions of a task are worth together."""
COMMUNICATE_WEIGHT = 0.1
"""What all facts that a task asks for are worth together."""

SYSTEM_PROMPT = """\
You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either send a message to the user or make tool calls. You cannot do both at the same time.
Try to be helpful and always follow the policy.

<policy>
{policy}
</policy>"""

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


class Tau2(TextEnv):
    """A tau2-bench task as an episode.

    A message with tool calls (`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`) is answered by the tools, one
    line for each call; any other message goes to the user, who answers. Thoughts (`<think>...</think>`) reach nobody.
    The episode terminates when the user leaves or the agent has transferred to a human; it is then evaluated as tau2
    evaluates it, without the assertions in natural language, which need a model as judge.

    Reward components; a perfect episode earns 1:

    - "action": 0.3, in equal parts for the golden actions that write, each when it is first made with the right
      arguments. Where tau2's reward asks for the golden actions themselves, those that only read count too.
    - "communicate": 0.1, in equal parts for the facts the task asks for, each when it is first told.
    - "db", "assertion": the rest at the end, when the databases are as the golden actions leave them, and when the
      task's assertions about the end state hold; in halves where a task has both. Where a task has neither golden
      writes nor facts, their share goes here.
    - "error": minus `error_penalty` for every call that cannot be read or fails.

    Args:
        domain: "retail", "airline", "telecom" or "mock".
        split: Tasks that `reset` draws from: "base" (all that tau2 evaluates on), "train", "test"; telecom also has
            "small" and "full".
        user: Plays the user: called with the conversation as chat messages, returns the user's next message, with
            ###STOP### to end the conversation. None is the scripted user.
        error_penalty: Subtracted for each call that cannot be read or fails; >= 0.
        max_calls: Most calls of one message; >= 1.

    Raises:
        ValueError: An argument is out of its range.
        MissingDependencyError: tau2 is not installed.
    """

    max_turns = 50

    def __init__(
        self,
        *,
        domain: str = "retail",
        split: str = "base",
        user: ChatUser | None = None,
        error_penalty: float = 0.0,
        max_calls: int = 8,
    ) -> None:
        if user is not None and not callable(user):
            raise ValueError(f"user must be a callable that maps chat messages to text, or None, got {user!r}")
        if not (error_penalty >= 0 and math.isfinite(error_penalty)):
            raise ValueError(f"error_penalty must be 0 or positive, got {error_penalty}")
        if max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, got {max_calls}")
        self.domain = load_domain(domain)
        self.tasks = self.domain.task_set(split)
        self.error_penalty = error_penalty
        self.max_calls = max_calls
        self.system_prompt = SYSTEM_PROMPT.format(policy=self.domain.policy)  # type: ignore[misc]
        self.tools = self.domain.tools  # type: ignore[misc]
        self.action_space = TextSpace(self._examples())
        self._chat = user
        self._episode: Episode | None = None
        self._user: User | None = None
        self._earned: dict[str, float] = {}

    @property
    def episode(self) -> Episode:
        """The running episode, or the last one.

        Raises:
            EpisodeOrderError: `reset` was not called yet.
        """
        if self._episode is None:
            raise EpisodeOrderError("there is no episode yet; call reset first")
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts a conversation; the observation is the user's first message.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: {"task": id} chooses the task; otherwise it is drawn from `np_random`.

        Returns:
            The message, and info with the id of the task.

        Raises:
            ValueError: Unknown task or option.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        drawn = self.tasks.ids[int(self.np_random.integers(len(self.tasks)))]
        task = self.tasks[options.pop("task", drawn)]
        if options:
            raise ValueError(f"unknown options {sorted(options)}; the only option is 'task', a task id")
        self._episode = episode = Episode(self.domain, task)
        self._user = ScriptedUser(episode) if self._chat is None else ModelUser(episode, self._chat)
        self._earned = {}
        history = _history(episode)
        message = self._user.open()
        episode.user_says(message)
        return history + message, self._info()

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Runs the calls of a message, or passes it on to the user; see the class.

        Raises:
            EpisodeOrderError: `reset` was not called yet.
        """
        episode, user = self.episode, self._user
        assert user is not None
        message = _THOUGHT.sub("", action)
        calls = parse_calls(message, "hermes", max_calls=self.max_calls)
        text = _outside_calls(message)
        if not calls:
            if not text:
                return self._refuse("Empty message. Write to the user, or call a tool.")
            episode.agent_says(text, [])
            reply, ended = user.answer(text)
            episode.user_says(reply)
            return self._end(reply, "user", 0) if ended else self._go_on(reply, "user", 0, None)
        if isinstance(calls[0], CallError):
            return self._refuse(calls[0].message)
        return self._run(text, calls)

    def solver(self) -> Player:
        """A player that makes the golden actions of the task."""
        from envgym.environments.tau2.players import GoldenPlayer

        return GoldenPlayer(self)

    def _run(self, text: str, calls: list[ToolCall | CallError]) -> Step:
        assert self._user is not None
        readable: list[tuple[str, Any]] = []
        unreadable: str | None = None
        for call in calls:
            if isinstance(call, CallError):
                unreadable = call.message
                break
            readable.append((call.name, call.arguments))
            if call.name == TRANSFER:
                break
        self._user.notice_call()
        answers = self.episode.agent_says(text, readable)
        lines = [str(answer.content) for answer in answers]
        errors = [str(answer.content) for answer in answers if answer.error]
        if unreadable is not None:
            lines.append(unreadable)
            errors.append(unreadable)
        observation = "\n".join(lines)
        if readable[-1][0] == TRANSFER and not answers[-1].error:
            return self._end(observation, "tool", len(errors))
        return self._go_on(observation, "tool", len(errors), errors[0] if errors else None)

    def _refuse(self, problem: str) -> Step:
        return self._go_on(problem, "user", 1, problem)

    def _go_on(self, observation: str, role: str, num_errors: int, error: str | None) -> Step:
        components = self._progress(num_errors)
        return Step.running(observation, components, role=role, action_error=error, **self._info())

    def _end(self, observation: str, role: str, num_errors: int) -> Step:
        episode = self.episode
        components = self._progress(num_errors)
        evaluation = episode.evaluate()
        ends = [part for part in ("db", "assertion") if part in evaluation.parts]
        share = 1.0 - ACTION_WEIGHT * bool(episode.gold.actions) - COMMUNICATE_WEIGHT * bool(episode.facts)
        for part in ends:
            components[part] = share / len(ends) * evaluation.parts[part]
        if not ends:
            components["success"] = share * evaluation.success
        info = {**self._info(), "tau2": dict(evaluation.parts), "success": evaluation.success}
        return Step.terminal(observation, components, role=role, **info)

    def _progress(self, num_errors: int) -> dict[str, float]:
        """What this turn earned: the difference of what all turns so far have earned, so that nothing is paid twice."""
        episode = self.episode
        earned = {
            "action": ACTION_WEIGHT * episode.action_progress,
            "communicate": COMMUNICATE_WEIGHT * episode.communicate_progress,
        }
        components = {name: value - self._earned.get(name, 0.0) for name, value in earned.items()}
        self._earned = earned
        if num_errors and self.error_penalty:
            components["error"] = -self.error_penalty * num_errors
        return {name: value for name, value in components.items() if value}

    def _info(self) -> dict[str, Any]:
        return {"task": self.episode.task.id, "success": False}

    def _examples(self) -> list[str]:
        """Calls of some golden actions, and things to say, for an agent that plays at random."""
        examples = ["How can I help you?", "Could you tell me your name and zip code?", "Your request is complete."]
        for id in self.tasks.ids[:32]:
            criteria = self.tasks[id].evaluation_criteria
            for action in (criteria and criteria.actions) or []:
                if action.requestor == "assistant":
                    examples.append(format_call(action.name, action.arguments, "hermes"))
                else:
                    examples.append(f"Please use {action.name}.")
        return list(dict.fromkeys(examples))


def _outside_calls(message: str) -> str:
    """The part of a message that is no call."""
    parts = []
    start = 0
    while (at := message.find("<tool_call>", start)) >= 0:
        end = message.find("</tool_call>", at)
        if end < 0:
            break
        parts.append(message[start:at])
        start = end + len("</tool_call>")
    return "".join([*parts, message[start:]]).strip()


def _history(episode: Episode) -> str:
    """What was said before the episode begins, for tasks that begin in the middle of a conversation."""
    lines = []
    for message in episode.messages:
        if message.role == "tool":
            lines.append(f"tool: {message.content}")
        elif message.content:
            lines.append(f"{message.role}: {message.content}")
        for call in getattr(message, "tool_calls", None) or []:
            lines.append(f"{message.role} calls {format_call(call.name, call.arguments, 'hermes')}")
    return "Earlier in this conversation:\n" + "\n".join(lines) + "\n\n" if lines else ""
