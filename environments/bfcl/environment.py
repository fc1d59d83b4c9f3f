"""BFCL v4 multi-turn: a user asks for several things in turn, and simulated tools do them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from envgym import Step, TextEnv
from envgym.agent import Player
from envgym.environments.bfcl.backend import Backend, Result
from envgym.environments.bfcl.calls import CALL_FORMATS, read_calls, write_calls
from envgym.environments.bfcl.players import ANSWER, Replay, call_arguments
from envgym.environments.bfcl.tasks import SUBSETS, Task, load_tasks, schemas
from envgym.spaces import TextSpace
from envgym.tools import CallError

STEP_LIMIT = 20
"""Messages with calls in one user turn; one more ends the task as failed. BFCL's limit, and part of the task."""
_UNIT = 2**20
"""Rewards are whole numbers of half units, and a unit is 2**-20: every sum of them is exact, and a perfect one is 1."""
PERSONA = "You are an expert in composing functions."
TASK = (
    "You are given a question and a set of possible functions. Based on the question, you will need to make one or "
    "more function/tool calls to achieve the purpose. If none of the functions can be used, point it out. If the given "
    "question lacks the parameters required by the function, also point it out."
)
FORMAT = (
    "You should only return the function calls in your response.\n\nIf you decide to invoke any of the function(s), "
    "you MUST put it in the format of [func_name1(params_name1=params_value1, params_name2=params_value2...), "
    "func_name2(params)].  You SHOULD NOT include any other text in the response."
)
MULTI_TURN = (
    "At each turn, you should try your best to complete the tasks requested by the user within the current turn. "
    "Continue to output functions to call until you have fulfilled the user's request to the best of your ability. "
    "Once you have no more functions to call, the system will consider the current turn complete and proceed to the "
    "next turn or task."
)
ADDED = "I have updated some more functions you can choose from. What about now?"


class BfclMultiTurn(TextEnv):
    """A conversation of one to eight user turns; the tools of eight simulated services do what the user asks.

    A message with calls is answered with their results. A message without a call ends the user turn: BFCL's checks are
    applied, and the next user message comes or the task ends.

    Reward components, with w = 1 / user turns. In a user turn that needs calls: "response" (w / 2, an equal part for
    each recorded result as it is seen, or was seen before) and at its end "state" (w / 2 if the tools are in the
    recorded state and there was a call). At the end of one that needs none: "irrelevance" (w if there was none).
    "malformed" and "error" cost the penalties. The task is solved when every user turn was right, and only then do the
    rewards sum to 1.

    Args:
        subset: "base", "miss_func" (functions that are declared later), "miss_param" (parameters that are told later)
            or "long_context" (large results).
        call_format: "hermes", or "python" for BFCL's own `[f(a=1), g()]`; see `envgym.environments.bfcl.calls`.
        malformed_penalty: Subtracted for a message with a call that cannot be read; >= 0.
        error_penalty: Subtracted for every call that raises or answers with an error; >= 0. The recorded calls of some
            tasks do, so that a perfect episode earns less than 1 where this is not 0.
        irrelevance: Whether a call in a user turn that needs none fails the task. The published checker has that rule;
            the runner of this version of BFCL no longer applies it (`info["bfcl_valid"]` is its verdict).

    Raises:
        ValueError: An argument is out of its range.
        MissingDependencyError: `bfcl-eval` is not installed.
    """

    def __init__(
        self,
        *,
        subset: str = "base",
        call_format: str = "hermes",
        malformed_penalty: float = 0.01,
        error_penalty: float = 0.0,
        irrelevance: bool = True,
    ) -> None:
        if subset not in SUBSETS:
            raise ValueError(f"subset must be one of {', '.join(SUBSETS)}, got {subset!r}")
        if call_format not in CALL_FORMATS:
            raise ValueError(f"call_format must be one of {', '.join(CALL_FORMATS)}, got {call_format!r}")
        for name, penalty in (("malformed_penalty", malformed_penalty), ("error_penalty", error_penalty)):
            if not (penalty >= 0 and math.isfinite(penalty)):
                raise ValueError(f"{name} must be 0 or positive, got {penalty}")
        self.subset = subset
        self.call_format = call_format
        self.malformed_penalty = malformed_penalty
        self.error_penalty = error_penalty
        self.irrelevance = irrelevance
        self._tasks = load_tasks(subset)
        self.task_ids = tuple(self._tasks)
        """Ids of the tasks, which `reset(options={"task": ...})` takes."""
        self.num_tasks = len(self.task_ids)
        self.action_space = TextSpace(_examples(tuple(self._tasks.values()), call_format))
        self._begin(self._tasks[self.task_ids[0]])
        self.tools = tuple(schemas().values())  # type: ignore[misc] # of all tasks, until there is one

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins a task.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: `{"task": id}` chooses the task; without it one is drawn.

        Returns:
            The first message of the user, and info.

        Raises:
            ValueError: No task of this subset has that id.
        """
        super().reset(seed=seed)
        task_id = (options or {}).get("task")
        if task_id is None:
            task_id = self.task_ids[int(self.np_random.integers(self.num_tasks))]
        if task_id not in self._tasks:
            raise ValueError(
                f"unknown task {task_id!r}: the subset '{self.subset}' has {self.task_ids[0]} to {self.task_ids[-1]}"
            )
        self._begin(self._tasks[task_id])
        instructions = _system_prompt(self._task.functions(0), self.call_format)
        self.system_prompt = instructions  # type: ignore[misc]
        return self._user_message(), {"role": "user", "success": False, **self._progress()}

    def step(self, action: str) -> Step:  # type: ignore[override]
        """Runs the calls of a message, or ends the user turn; see the class."""
        calls = read_calls(action, self.call_format, self._names)
        if not calls:
            return self._end_turn()
        self._num_steps += 1
        results: list[Result] = []
        components: dict[str, float] = {}
        action_error: str | None = None
        for call in calls:
            if isinstance(call, CallError):
                action_error = call.message
                components["malformed"] = -self.malformed_penalty
                results.append(Result(call.message, True))
                break
            result = self._backend.call(call)
            self._called = True
            self._seen[result.text] += 1
            results.append(result)
            if result.failed:
                action_error = result.text
                components["error"] = components.get("error", 0.0) - self.error_penalty
        components |= self._response_reward()
        observation = "\n".join(result.text for result in results)
        if self._num_steps > STEP_LIMIT:
            return Step.terminal(
                f"{observation}\nMore than {STEP_LIMIT} messages with calls for one request: the task is lost.",
                components,
                success=False,
                role="tool",
                action_error=action_error,
                bfcl_valid=False,
                **self._progress(),
            )
        return Step.running(
            observation, components, role="tool", action_error=action_error, success=False, **self._progress()
        )

    def solver(self) -> Player:
        """A player that replays the recorded calls."""
        return Replay(self.call_format)

    def _begin(self, task: Task) -> None:
        self._task = task
        self._backend, self._truth = Backend(task), Backend(task)
        self._turn = 0
        self._seen: Counter[str] = Counter()
        self._right: list[bool] = []
        self._needed: list[bool] = []
        self._begin_turn()

    def _begin_turn(self) -> None:
        """Declares the tools of the present user turn, and runs its recorded calls on tools of their own."""
        self._num_steps = 0
        self._called = False
        self._paid = 0
        self._expected = Counter(self._truth.call(call).text for call in self._task.ground_truth[self._turn])
        names = [doc["name"] for doc in self._task.functions(self._turn)]
        self._names: frozenset[str] = frozenset(names)
        self.tools = tuple(schemas()[name] for name in names)  # type: ignore[misc]

    def _user_message(self) -> str:
        if added := self._task.added_functions(self._turn):
            return _added_functions(added, self.call_format)
        return self._task.messages[self._turn]

    def _progress(self) -> dict[str, Any]:
        """Entries that every `info` has."""
        return {"task": self._task.id, "subset": self.subset, "user_turn": self._turn}

    def _response_reward(self) -> dict[str, float]:
        """What the recorded results that have been seen by now earn beyond what was paid in this user turn."""
        if not (self._called and self._expected):
            return {}
        num_seen = (self._expected & self._seen).total()
        half = _weight(self._turn, len(self._task.messages))  # of the weight, in half units
        earned = half * num_seen // self._expected.total()
        paid, self._paid = self._paid, earned
        return {"response": (earned - paid) / 2 / _UNIT} if earned > paid else {}

    def _end_turn(self) -> Step:
        """Applies BFCL's checks to the user turn and goes on to the next."""
        weight = _weight(self._turn, len(self._task.messages))
        if self._expected:
            state = self._called and self._backend.matches(self._truth)
            checks = {"state": state, "response": self._called and self._expected <= self._seen}
            components = {"state": state * weight / 2 / _UNIT}
        else:
            checks = {"irrelevance": not self._called}
            components = {"irrelevance": (not self._called) * weight / _UNIT}
        self._right.append(all(checks.values()))
        self._needed.append(bool(self._expected))
        self._turn += 1
        if self._turn == len(self._task.messages):
            valid = all(right for right, needed in zip(self._right, self._needed, strict=True) if needed)
            return Step.terminal(
                "The conversation is over.",
                components,
                success=all(self._right) if self.irrelevance else valid,
                bfcl_valid=valid,
                checks=checks,
                **self._progress(),
            )
        self._begin_turn()
        return Step.running(self._user_message(), components, success=False, checks=checks, **self._progress())


def _weight(turn: int, num_turns: int) -> int:
    """Share of a user turn in the reward, in units; the last takes what rounding leaves."""
    share = round(_UNIT / num_turns)
    return share if turn < num_turns - 1 else _UNIT - share * (num_turns - 1)


def _examples(tasks: tuple[Task, ...], call_format: str) -> list[str]:
    """Messages for a random agent: the first recorded call of every eighth task, and some that end the user turn."""
    calls = [(task, next(call for turn in task.ground_truth for call in turn)) for task in tasks[::8]]
    written = [write_calls([call_arguments(task, call)], call_format) for task, call in calls]
    return [*dict.fromkeys(written), *[ANSWER] * (len(calls) // 4)]


def _system_prompt(functions: Sequence[Mapping[str, Any]], call_format: str) -> str:
    """Instructions of a task.

    The "python" format lists the functions, as BFCL does for prompted models. "hermes" leaves that to the renderer,
    which has their schemas.
    """
    if call_format == "hermes":
        return f"{PERSONA}{TASK}\n\n{MULTI_TURN}"
    documents = json.dumps(list(functions), indent=4)
    tools = f"Here is a list of functions in json format that you can invoke.\n{documents}\n"
    return f"{PERSONA}{TASK}\n\n{FORMAT}\n\n{MULTI_TURN}\n\n{tools}"


def _added_functions(functions: Sequence[Mapping[str, Any]], call_format: str) -> str:
    """The message of the user turn that declares held-out functions, with their documents."""
    if call_format == "hermes":
        lines = [json.dumps(schemas()[function["name"]]) for function in functions]
    else:
        lines = [json.dumps(list(functions))]
    return "\n".join([*lines, ADDED])
