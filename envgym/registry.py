"""The registry: Gymnasium's own, with the fields text environments need and plug-ins found on first use."""

from __future__ import annotations

import importlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator, parse_env_id

from envgym.env import TextEnv
from envgym.errors import EnvGymError, UnknownIdError, nearest
from envgym.types import TruncationReason

ENTRY_POINT_GROUP = "envgym.environments"
_LIMIT, _GUARD = "envgym.wrappers:MaxTurns", "envgym.wrappers:EpisodeGuard"

_BUILTIN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("pointer_chase", ("tools",), "PointerChase"),
    ("higher_lower", (), "HigherLower"),
    ("upkeep", (), "Upkeep"),
    ("bfcl", ("bridge", "tools"), "BfclMultiTurn"),
    ("tau2", ("bridge", "tools"), "Tau2Retail Tau2Airline Tau2Telecom Tau2Mock"),
    ("wordle", (), "Wordle"),
    ("mastermind", (), "Mastermind"),
    ("text_maze", (), "TextMaze"),
    ("key_door", (), "KeyDoor"),
    ("calculator", ("tools",), "Calculator"),
    ("sql_analyst", ("tools",), "SqlAnalyst"),
    ("file_clerk", ("tools",), "FileClerk"),
    ("assistant", ("tools",), "Assistant"),
    ("toy_text", ("toy_text",), "FrozenLake Taxi CliffWalking Blackjack"),
    ("reasoning", ("reasoning_gym",), "ReasoningGym"),
    ("text_world", ("textworld",), "TextWorld"),
    (
        "text_arena",
        ("textarena",),
        "TextArena2048 TextArenaBandit TextArenaBlackjack TextArenaCountdown TextArenaCrosswords "
        "TextArenaCryptarithm TextArenaFifteenPuzzle TextArenaFrozenLake TextArenaGuessTheNumber "
        "TextArenaLightsOut TextArenaLogicPuzzle TextArenaMastermind TextArenaMinesweeper TextArenaPegJump "
        "TextArenaRushHour TextArenaSecretary TextArenaSet TextArenaSlitherlink TextArenaSokoban "
        "TextArenaSudoku TextArenaThreeCardMonte TextArenaTowerOfHanoi",
    ),
)
"""Module, further tags and classes of the environments that come with this package."""

_plugins_lock = threading.RLock()
_plugins_loaded = False


def register(
    id: str,
    entry_point: str | Callable[..., gymnasium.Env[str, str]],
    *,
    max_turns: int | None = None,
    terminal_limits: Iterable[TruncationReason | str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    nondeterministic: bool = False,
    force: bool = False,
) -> None:
    """Adds an environment to Gymnasium's registry; afterwards `envgym.make` and `gymnasium.make` both know it.

    Everything given here is kept in the `EnvSpec` and survives `EnvSpec.to_json`. The same entry point may be
    registered again under its id, as a notebook cell does that is run twice: the new registration counts.

    Args:
        id: `namespace/Name-v0`.
        entry_point: `"module:Class"` (imported when first made), or the class or factory itself; not an instance, since
            every episode that runs at the same time needs an environment of its own.
        max_turns: Turns after which an episode is cut; None takes the class attribute of the environment.
        terminal_limits: Limits that belong to the task; None takes the class attribute of the environment.
        kwargs: Arguments of the constructor; those given to `make` go before.
        tags: Labels for `list_environments`.
        nondeterministic: Whether the same seed and actions may lead to different episodes.
        force: Replace what another entry point has registered under this id.

    Raises:
        ValueError: The id, the entry point, the turn limit or a terminal limit is malformed, or the id belongs to
            another entry point.
    """
    _check_entry_point(id, entry_point)
    _check_id(id, entry_point, force=force)
    if max_turns is not None and max_turns < 1:
        raise ValueError(f"max_turns of {id!r} must be at least 1, got {max_turns}")
    limits = None if terminal_limits is None else [TruncationReason(limit).value for limit in terminal_limits]
    replaced = gymnasium.registry.pop(id, None)  # Gymnasium would warn, of what was asked for
    try:
        gymnasium.register(
            id,
            entry_point=cast(Any, entry_point),
            nondeterministic=nondeterministic,
            order_enforce=False,
            kwargs=dict(kwargs or {}),
            additional_wrappers=(
                WrapperSpec("MaxTurns", _LIMIT, {"max_turns": max_turns, "terminal_limits": limits}),
                WrapperSpec("EpisodeGuard", _GUARD, {"tags": list(tags)}),
            ),
        )
    except gymnasium.error.Error as error:
        if replaced is not None:
            gymnasium.registry[id] = replaced
        raise ValueError(f"cannot register {id!r}: {error}") from error


def _check_entry_point(id: str, entry_point: Any) -> None:
    if isinstance(entry_point, str):
        if entry_point.count(":") != 1:
            raise ValueError(f"the entry point of {id!r} must have the form 'module:Class', got {entry_point!r}")
    elif isinstance(entry_point, gymnasium.Env):
        name = type(entry_point).__name__
        raise ValueError(f"the entry point of {id!r} is an instance of {name}; register the class {name} itself")
    elif not callable(entry_point):
        raise ValueError(f"the entry point of {id!r} must be a class, a factory or 'module:Class', got {entry_point!r}")
    elif inspect.isclass(entry_point) and not issubclass(entry_point, gymnasium.Env):
        raise ValueError(f"the entry point of {id!r} is {entry_point.__name__}; derive that from envgym.TextEnv")


def _check_id(id: str, entry_point: str | Callable[..., Any], *, force: bool) -> None:
    try:
        version = parse_env_id(id)[2]
    except (gymnasium.error.Error, TypeError) as error:
        raise ValueError(f"cannot register {id!r}: {error}") from error
    if version is None:
        raise ValueError(f"cannot register {id!r}: an id ends with its version, for example '{id}-v0'")
    present = gymnasium.registry.get(id)
    if present is not None and not force and _name_of(present.entry_point) != _name_of(entry_point):
        raise ValueError(
            f"{id!r} is registered already, for {_name_of(present.entry_point)}; choose another id or version for "
            f"{_name_of(entry_point)}, or replace it with force=True"
        )


def _name_of(entry_point: Any) -> str:
    """`module:Class`, also of the class or factory itself."""
    if isinstance(entry_point, str):
        return entry_point
    named = entry_point if hasattr(entry_point, "__qualname__") else type(entry_point)
    return f"{named.__module__}:{named.__qualname__}"


def register_builtin() -> None:
    """Registers the environments that come with this package. Imports none of them, and may be called again."""
    for module, tags, names in _BUILTIN:
        for name in names.split():
            if f"envgym/{name}-v0" not in gymnasium.registry:
                register(f"envgym/{name}-v0", f"envgym.environments.{module}:{name}", tags=("builtin", *tags))


def spec(id: str) -> EnvSpec:
    """The registration of an environment.

    Args:
        id: `namespace/Name-v0`, or `module:namespace/Name-v0` to import a module that registers it first.

    Raises:
        UnknownIdError: No such environment, or the module cannot be imported; the message suggests what may be meant.
    """
    module, _, name = id.rpartition(":")
    if module:
        _import(module, id)
    _load_plugins()
    found = gymnasium.registry.get(name)
    if found is None:
        raise UnknownIdError(f"Unknown environment '{name}'. {_hint(module, name)}")
    if not _is_ours(found):
        raise UnknownIdError(f"'{name}' is no text environment: it was not registered through envgym.register.")
    return found


def _import(module: str, id: str) -> None:
    """Imports the module that an id names."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise UnknownIdError(
                f"there is no module '{missing}' to import for '{id}'; install it, or run from the folder it is in"
            ) from error
        raise UnknownIdError(f"'{module}' cannot be imported for '{id}': it needs '{missing}'") from error
    except Exception as error:
        raise UnknownIdError(
            f"'{module}' cannot be imported for '{id}' ({type(error).__name__}: {error}); repair it"
        ) from error


def _hint(module: str, name: str) -> str:
    """What to do about an id that nobody has registered."""
    known = list_environments()
    suggestion = nearest(name, known)
    if suggestion is not None:
        return f"Did you mean '{suggestion}'?"
    namespace, slash, _ = name.rpartition("/")
    siblings = [env_id for env_id in known if env_id.startswith(f"{namespace}/")]
    if module:
        registered = f"only {', '.join(siblings)}" if slash and siblings else "nothing like it"
        return f"'{module}' was imported, and {registered} is registered."
    if slash and not siblings:
        return (
            f"Nothing is registered under '{namespace}/'. Import the module that registers it first, or let it be "
            f"imported: 'MODULE:{name}'."
        )
    return f"Known are: {', '.join(siblings or known)}."


def list_environments(tag: str | None = None) -> list[str]:
    """Ids of the registered text environments in alphabetical order.

    Args:
        tag: Only those registered with this tag.
    """
    _load_plugins()
    found = [(e.id, w) for e in gymnasium.registry.values() for w in e.additional_wrappers if w.entry_point == _GUARD]
    return sorted(env_id for env_id, guard in found if tag is None or tag in (guard.kwargs or {})["tags"])


def make(id: str | EnvSpec, *, max_turns: int | None = None, **kwargs: Any) -> TextEnv:
    """Makes an environment, with its turn limit and the guard of the contract around it.

    The guard raises `EpisodeOrderError` and `RewardError`; it takes the place of Gymnasium's order and passive
    checkers, which `gymnasium.make` adds.

    Args:
        id: Id of a registered environment, or an `EnvSpec`.
        max_turns: Turn limit in place of the registered one; None keeps that.
        kwargs: Arguments of the environment's constructor.

    Returns:
        The wrapped environment; `.unwrapped` is the `TextEnv` itself.

    Raises:
        UnknownIdError: No such environment; the message suggests the nearest.
        EnvGymError: Its entry point cannot be imported.
        ValueError: `max_turns` is below 1, or the constructor does not take an argument or its value, or lacks one.
    """
    entry = spec(id) if isinstance(id, str) else id
    accepted = arguments_of(entry)
    for name in kwargs:
        if accepted is not None and name not in accepted:
            raise ValueError(f"'{entry.id}' takes no argument '{name}'; it takes {', '.join(['max_turns', *accepted])}")
    wrappers = tuple(
        WrapperSpec(wrapper.name, wrapper.entry_point, {**(wrapper.kwargs or {}), "max_turns": max_turns})
        if wrapper.entry_point == _LIMIT and max_turns is not None
        else wrapper
        for wrapper in entry.additional_wrappers
    )
    limited = EnvSpec(
        entry.id,
        entry_point=entry.entry_point,
        nondeterministic=entry.nondeterministic,
        order_enforce=False,
        disable_env_checker=True,
        kwargs=dict(entry.kwargs),
        additional_wrappers=wrappers,
    )
    try:
        return cast(TextEnv, gymnasium.make(limited, **kwargs))
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in {**entry.kwargs, **kwargs}.items()) or "no arguments"
        raise ValueError(f"'{entry.id}' cannot be made with {given}: {error.__cause__ or error}") from error


def creator_of(entry: EnvSpec) -> Callable[..., Any]:
    """The class or factory of a registration.

    Raises:
        MissingDependencyError: It needs a package that is not installed.
        EnvGymError: Its entry point cannot be imported.
    """
    if not isinstance(entry.entry_point, str):
        return cast(Any, entry.entry_point)
    try:
        return load_env_creator(entry.entry_point)
    except EnvGymError:
        raise
    except (ImportError, AttributeError) as error:
        raise EnvGymError(
            f"the entry point '{entry.entry_point}' of '{entry.id}' cannot be imported "
            f"({type(error).__name__}: {error})"
        ) from error


def arguments_of(entry: EnvSpec) -> list[str] | None:
    """Names of the arguments that the constructor of a registration takes; None where it takes any.

    Raises:
        EnvGymError: See `creator_of`.
    """
    parameters = inspect.signature(creator_of(entry)).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


def _is_ours(entry: EnvSpec) -> bool:
    return any(wrapper.entry_point == _GUARD for wrapper in entry.additional_wrappers)


def _load_plugins() -> None:
    """Loads the environments of installed packages, once: imports each entry point, and calls it where it can be."""
    global _plugins_loaded
    with _plugins_lock:
        if _plugins_loaded:
            return
        _plugins_loaded = True  # before loading: a plug-in may itself look something up
        # Imported here, since `import envgym` must be quick.
        from importlib.metadata import entry_points

        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            try:
                plugin = entry_point.load()
                if callable(plugin):
                    plugin()
            except Exception as error:
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                warnings.warn(
                    f"the environments of package '{package}' could not be loaded ({type(error).__name__}: {error}); "
                    f"repair or uninstall it. Its entry point is {entry_point.name} = {entry_point.value}",
                    stacklevel=3,
                )
