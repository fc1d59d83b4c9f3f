"""The simulated tools of one episode: BFCL's classes, with nothing shared between episodes or threads.

Results are formatted as BFCL formats them, exceptions of the tools included, so that they can be compared with its
recorded ground truth.
"""

from __future__ import annotations

import contextlib
import copy
import decimal
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envgym.environments.bfcl.tasks import Task, tool_class
from envgym.tools import ToolCall

MAX_PRECISION = 10_000
"""Most digits a calculation is asked for; BFCL sets no limit, and a call for more would not return."""
_LARGEST_BITS = 20_000
"""Integers of more bits have more digits than Python writes: BFCL computes them, then answers with an error."""

_tools_lock = threading.RLock()
"""Some tools work in state of their module, or of mpmath: one call at a time, result included."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a call.

    Attributes:
        text: What the policy sees, and what BFCL compares.
        failed: Whether the call raised or answered with an error.
    """

    text: str
    failed: bool


class Backend:
    """Fresh tool instances in the initial state of a task.

    Args:
        task: The task; its data is copied.
    """

    def __init__(self, task: Task) -> None:
        self.instances = {name: _load(task, name) for name in task.classes}
        self._methods: dict[str, Callable[..., Any]] = {}
        for instance in self.instances.values():
            for name, _ in inspect.getmembers(type(instance), inspect.isfunction):
                if not name.startswith("_"):
                    self._methods[name] = getattr(instance, name)

    def call(self, call: ToolCall) -> Result:
        """Runs a call by its name and with its arguments as written. No text is evaluated.

        A function that is held back is only not declared, as in BFCL: its call works, and one recorded answer needs it.
        """
        try:
            method = self._methods.get(call.name)
            if method is None:
                raise NameError(f"name '{call.name.partition('.')[0]}' is not defined")
            arguments, positional = copy.deepcopy((dict(call.arguments), call.positional))
            with _isolated():
                _refuse_endless(method, arguments, positional)
                return _result(method(*positional, **arguments))
        except Exception as error:  # BFCL's own rule: whatever a simulated tool raises is its answer
            return Result(f"Error during execution: {error}", True)

    def matches(self, truth: Backend) -> bool:
        """Whether every public attribute of every instance equals that of the other backend (BFCL's state check)."""
        try:
            return all(
                getattr(self.instances[name], key) == value
                for name, other in truth.instances.items()
                for key, value in vars(other).items()
                if not key.startswith("_")
            )
        except RecursionError:  # a folder that was copied into itself
            return False


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """One call at a time, and the precisions that the calculator sets stay in it."""
    import mpmath

    with _tools_lock, decimal.localcontext():
        precision = mpmath.mp.prec
        try:
            yield
        finally:
            mpmath.mp.prec = precision


def parameters(class_names: tuple[str, ...], function: str) -> tuple[str, ...]:
    """Names of the parameters of a tool, in order."""
    for name in class_names:
        if method := getattr(tool_class(name), function, None):
            return tuple(inspect.signature(method).parameters)[1:]
    raise ValueError(f"no class of {', '.join(class_names)} has a tool '{function}'")


def _load(task: Task, class_name: str) -> Any:
    instance: Any = tool_class(class_name)()
    if hasattr(instance, "_load_scenario"):
        config = copy.deepcopy(task.initial_config.get(class_name, {}))
        long_context = task.subset == "long_context"
        instance._load_scenario(config, long_context=long_context)
        if long_context and class_name == "TravelAPI":
            # It takes credit cards and bookings from its module without copying them, and later changes balances.
            instance = copy.deepcopy(instance)
    return instance


def _result(value: Any) -> Result:
    if isinstance(value, str):
        return Result(value, False)
    if isinstance(value, dict):
        try:
            return Result(json.dumps(value), "error" in value)
        except (TypeError, ValueError, RecursionError):
            return Result(str(value), "error" in value)
    return Result(str(value), False)


def _refuse_endless(method: Callable[..., Any], arguments: dict[str, Any], positional: tuple[Any, ...]) -> None:
    """Refuses what would take minutes or all memory: powers and precisions without bound."""
    try:
        given = inspect.signature(method).bind(*positional, **arguments).arguments
    except TypeError:
        return  # the call itself says what is wrong
    name = method.__name__
    if name == "power":
        base, exponent = given["base"], given["exponent"]
        if isinstance(base, int) and isinstance(exponent, int) and (base.bit_length() - 1) * exponent > _LARGEST_BITS:
            digits = sys.get_int_max_str_digits()
            raise ValueError(
                f"Exceeds the limit ({digits} digits) for integer string conversion; "
                "use sys.set_int_max_str_digits() to increase the limit"
            )
    for key in {"logarithm": ("precision",), "square_root": ("precision",), "round_number": ("decimal_places",)}.get(
        name, ()
    ):
        try:
            too_many = abs(int(given.get(key, 0))) > MAX_PRECISION
        except (TypeError, ValueError, OverflowError):
            return  # no number: the call itself says so
        if too_many:
            raise ValueError(f"{key} must be at most {MAX_PRECISION}")
