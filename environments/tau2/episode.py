"""One conversation of a tau2 task: its environment, its messages, and how far it has come."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envgym.environments.tau2.domain import Domain, Gold

MAX_EXPRESSION = 200
"""Longest expression that `calculate` gets to see, in characters."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What tau2's evaluators say about an episode.

    Attributes:
        parts: Whether each part of tau2's reward is met, of those in the task's reward basis: "db" (both databases
            are in the state that the golden actions lead to), "assertion" (the task's assertions about the end
            state hold), "actions" (every golden action was called), "communicate" (every fact was told).
    """

    parts: Mapping[str, bool]

    @property
    def success(self) -> bool:
        """Whether tau2's reward, the product of the parts, is 1."""
        return all(self.parts.values())


class Episode:
    """The state of one conversation.

    Args:
        domain: The domain.
        task: The tau2 task.

    Attributes:
        environment: tau2's environment of this episode.
        messages: Everything said and called, as tau2 messages; tau2's evaluators take this list.
        gold: Where the golden actions lead.
    """

    def __init__(self, domain: Domain, task: Any) -> None:
        from tau2.data_model import message

        self._message = message
        self.domain = domain
        self.task = task
        self.gold: Gold = domain.gold(task)
        self.environment = domain.start(task)
        history = (task.initial_state.message_history if task.initial_state else None) or []
        self.messages: list[Any] = copy.deepcopy(history)
        self._open_actions = list(self.gold.actions)
        told = self._facts_told()
        self._facts = [fact for fact in self._all_facts() if fact not in told]
        self._num_calls = 0

    @property
    def facts(self) -> tuple[str, ...]:
        """What the agent has to tell the user."""
        return tuple(self._facts)

    def agent_says(self, text: str, calls: list[tuple[str, Mapping[str, Any]]]) -> list[Any]:
        """Records a message of the agent and runs its calls.

        Args:
            text: The part of the message that is no call; may be empty next to calls.
            calls: Names and arguments.

        Returns:
            tau2's answers to the calls, in order.
        """
        return self._say(self._message.AssistantMessage, "assistant", text, calls)

    def user_says(self, text: str) -> None:
        """Records a message of the user."""
        self._say(self._message.UserMessage, "user", text, [])

    def user_calls(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a tool of the user, and returns tau2's answer."""
        return self._say(self._message.UserMessage, "user", "", [(name, arguments)])[0]

    @property
    def action_progress(self) -> float:
        """Share of the counted golden actions that were made, successfully and with all their arguments; 0 to 1."""
        total = len(self.gold.actions)
        return (total - len(self._open_actions)) / total if total else 0.0

    @property
    def communicate_progress(self) -> float:
        """Share of the facts that were told; 0 to 1."""
        told = self._facts_told()
        return sum(fact in told for fact in self._facts) / len(self._facts) if self._facts else 0.0

    def evaluate(self) -> Evaluation:
        """What tau2's evaluators say about the episode if it ended now. Assertions in natural language are left out."""
        criteria = self.task.evaluation_criteria
        if criteria is None:
            return Evaluation({})
        self.environment.sync_tools()
        basis = {entry.value for entry in criteria.reward_basis}
        parts: dict[str, bool] = {}
        checkable = criteria.actions is not None or criteria.env_assertions is not None
        if "DB" in basis:
            parts["db"] = not checkable or self.domain.changes(self.environment) == self.gold.changes
        if "ENV_ASSERTION" in basis:
            parts["assertion"] = all(self.holds(assertion) for assertion in criteria.env_assertions or [])
        if "ACTION" in basis:
            calls = [call for message in self.messages for call in getattr(message, "tool_calls", None) or []]
            parts["actions"] = all(
                any(action.compare_with_tool_call(call) for call in calls) for action in criteria.actions or []
            )
        if "COMMUNICATE" in basis:
            told = self._facts_told()
            parts["communicate"] = all(fact in told for fact in self._all_facts())
        return Evaluation(parts)

    def holds(self, assertion: Any) -> bool:
        """Whether an assertion of the task holds; one that cannot be checked, for want of a record, does not."""
        try:
            return bool(self.environment.run_env_assertion(assertion, raise_assertion_error=False))
        except (ValueError, KeyError, AttributeError):
            return False

    def _say(self, kind: Any, role: str, text: str, calls: list[tuple[str, Mapping[str, Any]]]) -> list[Any]:
        made = [self._call(role, name, arguments) for name, arguments in calls]
        self.messages.append(kind(role=role, content=text or None, tool_calls=made or None))
        answers = []
        for call in made:
            self._num_calls += 1
            answer = self._run(call)
            answers.append(answer)
            self.messages.append(answer)
            if not answer.error:
                self._tick_off(call)
        return answers

    def _call(self, role: str, name: str, arguments: Mapping[str, Any]) -> Any:
        id = f"call_{self._num_calls}_{name[:32]}"
        return self._message.ToolCall(id=id, name=name, arguments=dict(arguments), requestor=role)

    def _run(self, call: Any) -> Any:
        if problem := _refusal(call.name, call.arguments):
            return self._message.ToolMessage(
                id=call.id, role="tool", content=f"Error: {problem}", requestor=call.requestor, error=True
            )
        call = call.model_copy(update={"arguments": copy.deepcopy(call.arguments)})  # tools keep what they are given
        return self.environment.get_response(call)

    def _tick_off(self, call: Any) -> None:
        """Takes a golden action off the list when a call makes it: all arguments right, not only those given."""
        for action in self._open_actions:
            compared = set(action.arguments) if action.compare_args is None else set(action.compare_args)
            complete = action.requestor == call.requestor and compared <= set(call.arguments)
            if complete and action.compare_with_tool_call(call):
                self._open_actions.remove(action)
                return

    def _all_facts(self) -> list[str]:
        criteria = self.task.evaluation_criteria
        return [] if criteria is None else list(criteria.communicate_info or [])

    def _facts_told(self) -> set[str]:
        """The facts that stand in a message of the agent: as substrings, case and commas aside, like in tau2."""
        texts = [
            message.content.lower().replace(",", "")
            for message in self.messages
            if message.role == "assistant" and message.content
        ]
        return {fact for fact in self._all_facts() if any(fact.lower() in text for text in texts)}


def _refusal(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Why a call is not passed on to tau2: `calculate` evaluates Python, where 9**9**9 would run for ever."""
    expression = arguments.get("expression")
    if name != "calculate" or not isinstance(expression, str):
        return None
    if "**" in expression or len(expression) > MAX_EXPRESSION:
        return f"Invalid expression: no powers, and at most {MAX_EXPRESSION} characters"
    return None
