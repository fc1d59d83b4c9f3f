"""The reasoning-gym package, imported on first use and made safe to share between episodes.

Some of its data sets evaluate an answer as Python code, print, or draw from the process-global random state. Here the
names they use for that are replaced in their own modules: `eval` by `ast.literal_eval`, `print` by nothing, and while a
task is generated `random` and `numpy.random` by generators of that task. The process-global state is never touched.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import random
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from envgym.errors import MissingDependencyError

_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
_UNWANTED_CODE = re.compile(
    r"\b(random\.|Random\(\)|from random import (?!Random\b)|import random as|set\(|hash\(|id\("
    r"|os\.|sys\.|open\(|input\(|requests|socket|subprocess|threading|multiprocessing|time\.|datetime|uuid|secrets|warn|where=|exec\("
    r"|eval\(|print\()|\bis\s+(not\s+)?[-'\"\d(\[{]|numpy\.random (as|import)"
)
"""What a code sample of the data set codeio must not contain: its tasks are made by running them."""
REDRAWS = 20
"""Seeds tried for a task before the failure of its generator is raised."""

_lock = threading.RLock()
_loaded = False
_wanted: dict[str, bool] = {}
"""Whether a code sample of codeio may be run, by its text."""


class _Numpy:
    """numpy with a random module of its own."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def datasets() -> dict[str, Any]:
    """Data set class and configuration class of every registered data set, by name.

    Raises:
        MissingDependencyError: reasoning-gym or something it needs is not installed.
    """
    global _loaded
    with _lock:
        states = random.getstate(), np.random.get_state()
        try:
            from reasoning_gym.factory import DATASETS

            if not _loaded:
                for name in _EVALUATING:
                    importlib.import_module(f"reasoning_gym.{name}").eval = ast.literal_eval  # type: ignore[attr-defined]
                for module in [module for name, module in sys.modules.items() if name.startswith("reasoning_gym.")]:
                    module.print = _no_print  # type: ignore[attr-defined]
                _loaded = True
        except ImportError as error:
            raise MissingDependencyError(
                f"envgym/ReasoningGym-v0 needs the reasoning-gym package ({error}): pip install 'envgym[reasoning-gym]'"
            ) from error
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
    return dict(DATASETS)


def check_config(name: str, config: Mapping[str, Any]) -> None:
    """Refuses what the package would refuse when a task is drawn.

    Raises:
        MissingDependencyError: reasoning-gym or something it needs is not installed.
        ValueError: There is no such data set, or the configuration does not fit it.
    """
    known = datasets()
    if name not in known:
        nearest = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean '{nearest[0]}'?" if nearest else f"Known are: {', '.join(sorted(known))}."
        raise ValueError(f"Unknown data set {name!r}. {hint}")
    config_class = known[name][1]
    fields = [field.name for field in dataclasses.fields(config_class) if field.name not in ("seed", "size")]
    for key in config:
        if key not in fields:
            raise ValueError(f"data set {name!r} has no setting {key!r}; it has {', '.join(fields)}")
    try:
        checked = config_class(**_settings(name, config), seed=0, size=1)
        if hasattr(checked, "validate"):
            checked.validate()
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise ValueError(f"config does not fit data set {name!r}: {error}") from error


def draw_task(name: str, config: Mapping[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """A data set object, which scores answers, and the task of that seed.

    Args:
        name: A registered data set.
        config: Settings of the data set.
        seed: Seed of the task; the same seed is the same task. Where a generator fails, the next seed is taken.
    """
    dataset_class, config_class = datasets()[name]
    with _lock:
        lists = importlib.import_module("reasoning_gym.induction.list_functions.generators")
        pools = importlib.import_module("reasoning_gym.algorithmic.pool_matrix")
        lists.random, pools.np = random.Random(seed), _Numpy(seed)  # type: ignore[attr-defined]
        for attempt in range(REDRAWS):
            try:
                dataset = dataset_class(config=config_class(**_settings(name, config), seed=seed + attempt, size=1))
                _drop_unwanted_code(dataset)
                entry = dataset[0]
                reliable = name != "codeio" or (entry == dataset[0] and entry["metadata"]["input_data"] != {})
            except Exception:  # some generators give up on some seeds
                if attempt == REDRAWS - 1:
                    raise
                continue
            if reliable:  # {} is codeio's sign of code that did not run
                break
        return dataset, entry


def _settings(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as the package takes it; of "composite" the data sets are given as plain dictionaries."""
    settings = dict(config)
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        parts = settings.get("datasets", [])
        settings["datasets"] = [
            DatasetSpec(str(part["name"]), float(part.get("weight", 1.0)), dict(part.get("config", {})))
            for part in parts
        ]
    return settings


def _drop_unwanted_code(dataset: Any) -> None:
    """Leaves out of codeio, alone or in a composite, what must not be run."""
    for part in (dataset, *getattr(dataset, "datasets", {}).values()):
        samples = type(part).__dict__.get("_jsonl_data")
        if samples is not None and "code_sample" in samples[0]:
            type(part)._jsonl_data = [sample for sample in samples if _is_wanted(sample)]


def _is_wanted(sample: Mapping[str, Any]) -> bool:
    code = sample["code_sample"] + sample["input_generator"]
    if code not in _wanted:
        _wanted[code] = not _UNWANTED_CODE.search(code)
    return _wanted[code]


def _no_print(*values: Any, **options: Any) -> None:
    """Takes the place of `print`."""
