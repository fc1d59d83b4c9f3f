"""The tasks of BFCL v4 multi-turn, read once from the `bfcl-eval` package and shared by every episode: never changed.

Only the package's data files are read here, and only its simulated tools are imported (`backend.py`). Its own runner
keeps tool instances in module globals, evaluates text as Python and makes folders when imported; it is not used.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envgym.environments.bfcl.calls import read_list
from envgym.errors import MissingDependencyError
from envgym.tools import ToolCall

SUBSETS = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0"
_PREFIX = "BFCL_v4_multi_turn_"
_HINT = " Note that the provided function is in Python 3 syntax."
_DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Files of the function documents, and modules of the tools, by class."""
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation.

    Attributes:
        id: BFCL's id, for example "multi_turn_base_0".
        subset: One of `SUBSETS`.
        classes: Names of the tool classes involved.
        messages: What the user says at each user turn; empty at a turn that brings held-out functions.
        ground_truth: The calls each user turn needs, as BFCL records them; none where no call is right.
        initial_config: State of the tools at the start, by class. Copy before use.
        held_out: Names of the functions that are declared only from that user turn on.
    """

    id: str
    subset: str
    classes: tuple[str, ...]
    messages: tuple[str, ...]
    ground_truth: tuple[tuple[ToolCall, ...], ...]
    initial_config: Mapping[str, Any]
    held_out: Mapping[int, tuple[str, ...]]

    def functions(self, turn: int) -> tuple[Mapping[str, Any], ...]:
        """Documents of the functions declared at a user turn, in BFCL's order."""
        missing = {name for start, names in self.held_out.items() if start > turn for name in names}
        return tuple(doc for name in self.classes for doc in function_docs(name) if doc["name"] not in missing)

    def added_functions(self, turn: int) -> tuple[Mapping[str, Any], ...]:
        """Documents of the functions that this user turn brings."""
        names = self.held_out.get(turn, ())
        return tuple(doc for name in self.classes for doc in function_docs(name) if doc["name"] in names)


@lru_cache(maxsize=len(SUBSETS))
def load_tasks(subset: str) -> Mapping[str, Task]:
    """The 200 tasks of a subset by id.

    Raises:
        MissingDependencyError: `bfcl-eval` or `mpmath` is not installed, or the package lacks the data.
    """
    answers = {entry["id"]: entry["ground_truth"] for entry in _read(f"possible_answer/{_PREFIX}{subset}.json")}
    return {entry["id"]: _task(entry, subset, answers[entry["id"]]) for entry in _read(f"{_PREFIX}{subset}.json")}


@lru_cache(maxsize=len(_DOCS))
def function_docs(class_name: str) -> tuple[Mapping[str, Any], ...]:
    """BFCL's documents of the functions of a class, with its hint about the language."""
    docs = _read(f"multi_turn_func_doc/{_DOCS[class_name]}.json")
    return tuple({**doc, "description": doc["description"] + _HINT} for doc in docs)


@lru_cache(maxsize=len(_DOCS))
def tool_class(class_name: str) -> type:
    """The simulated tool class itself.

    Raises:
        MissingDependencyError: The package or `mpmath` is not installed.
    """
    data_folder()
    module = importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{_DOCS[class_name]}")
    return getattr(module, class_name)


@lru_cache(maxsize=1)
def schemas() -> Mapping[str, Mapping[str, Any]]:
    """JSON function schemas of all functions of all classes, by name."""
    return {doc["name"]: _schema(doc) for name in _DOCS for doc in function_docs(name)}


@lru_cache(maxsize=1)
def data_folder() -> Path:
    """The folder of BFCL's data files.

    Raises:
        MissingDependencyError: `bfcl-eval` or `mpmath` is not installed, or another version lacks the data.
    """
    for package in ("bfcl_eval", "mpmath"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"BFCL needs the package '{package}' (extra 'bfcl'). Run: {INSTALL}  "
                "(--no-deps: bfcl-eval also lists the client of every model vendor, which nothing here uses)"
            )
    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _read(name: str) -> list[dict[str, Any]]:
    path = data_folder() / name
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingDependencyError(
            f"the installed bfcl-eval has no data file {name}; the extra 'bfcl' needs another version. Run: {INSTALL}"
        ) from error
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _task(entry: Mapping[str, Any], subset: str, ground_truth: list[list[str]]) -> Task:
    return Task(
        id=entry["id"],
        subset=subset,
        classes=tuple(entry["involved_classes"]),
        messages=tuple("\n".join(message["content"] for message in turn) for turn in entry["question"]),
        ground_truth=tuple(tuple(_one_call(call) for call in turn) for turn in ground_truth),
        initial_config=entry["initial_config"],
        held_out={int(turn): tuple(names) for turn, names in entry.get("missed_function", {}).items()},
    )


def _one_call(text: str) -> ToolCall:
    calls = read_list(f"[{text}]")
    assert calls is not None and len(calls) == 1, f"the ground truth {text!r} is no call with literal arguments"
    return calls[0]


def _schema(doc: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document as a function schema; what a call returns goes into the description, as BFCL does where it must."""
    description = f"{doc['description']} The response field has the following schema: {json.dumps(doc['response'])}"
    parameters = _json_types(doc["parameters"])
    return {
        "type": "function",
        "function": {"name": doc["name"], "description": description, "parameters": parameters},
    }


def _json_types(schema: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(schema)
    if "type" in result:
        result["type"] = _JSON_TYPES.get(result["type"], result["type"])
    if "items" in result:
        result["items"] = _json_types(result["items"])
    if "properties" in result:
        result["properties"] = {name: _json_types(value) for name, value in result["properties"].items()}
    return result
