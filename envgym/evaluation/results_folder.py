"""The folder of an evaluation: every episode on disk as it ends, so that a killed evaluation goes on where it was.

`episodes.jsonl` has one line for each episode::

    {"env_id": "envgym/HigherLower-v0", "seed": 3, "attempt": 0, "usage": null, "trajectory": {...}}

Environment, seed and attempt are the key. A failed episode is a line like any other, with the failure in its
trajectory; when it is played again, the new line counts. `settings.json` says which agent played, and how each
environment was set up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from gymnasium.envs.registration import EnvSpec

from envgym.agent import Agent
from envgym.errors import written_whole
from envgym.evaluation.results import OVERALL, EnvironmentReport, Evaluation, TokenUsage, summarise
from envgym.types import Trajectory

try:
    import fcntl
except ImportError:  # not on Windows, where two evaluations in one folder go unnoticed
    fcntl = None  # type: ignore[assignment]

EPISODES, SETTINGS = "episodes.jsonl", "settings.json"
_FORMAT = 1
_WEIGHTS = ("config.json", "tokenizer.json", "*.safetensors")
_SECRETS = frozenset({"api_key"})


class EpisodeKey(NamedTuple):
    """Which episode of an evaluation: an attempt at a task."""

    env_id: str
    seed: int
    attempt: int


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One line of `episodes.jsonl`.

    Attributes:
        key: Which episode it is.
        trajectory: What happened.
        usage: Its tokens, where the agent has counted them itself.
    """

    key: EpisodeKey
    trajectory: Trajectory
    usage: TokenUsage | None = None

    @property
    def finished(self) -> bool:
        """Whether it came to an end, rather than failed."""
        return self.trajectory.failure is None

    def to_json(self) -> str:
        """The line, without its end; `from_json` restores an equal record."""
        head = {**self.key._asdict(), "usage": None if self.usage is None else asdict(self.usage)}
        return f'{json.dumps(head, separators=(",", ":"))[:-1]},"trajectory":{self.trajectory.to_json()}}}'

    @classmethod
    def from_json(cls, line: str) -> EpisodeRecord:
        """Restores what `to_json` wrote.

        Raises:
            ValueError: The line is not such a record.
        """
        try:
            data = json.loads(line)
            key = EpisodeKey(str(data["env_id"]), int(data["seed"]), int(data["attempt"]))
            usage = None if data["usage"] is None else TokenUsage(**data["usage"])
            trajectory = Trajectory.from_json(json.dumps(data["trajectory"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not an episode record ({error}): {line[:80]!r}") from error
        return cls(key, trajectory, usage)


@dataclass(frozen=True, slots=True)
class Results:
    """What a folder holds.

    Attributes:
        path: The folder.
        agent: Identity of the agent that played.
        environments: Identity of each environment by its id.
        records: The episodes by key; of one that was played again after a failure, the last.
    """

    path: Path
    agent: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, Any]]
    records: Mapping[EpisodeKey, EpisodeRecord]


def read_results(path: str | Path) -> Results:
    """Reads the folder of an evaluation, also of one that was killed or is still running.

    Raises:
        ValueError: There is no such folder, it holds no results, or they are damaged.
    """
    folder = Path(path)
    if not (folder / SETTINGS).is_file():
        what = "holds no results of an evaluation" if folder.is_dir() else "is not a folder"
        raise ValueError(f"'{folder}' {what}; `envgym eval --results {folder}` writes some")
    settings = _read_settings(folder)
    file = folder / EPISODES
    records, _ = _parse(file, file.read_bytes() if file.exists() else b"")
    return Results(folder, settings["agent"], settings["environments"], records)


def evaluation_of(env_ids: Mapping[str, str], agent: str, records: Iterable[EpisodeRecord]) -> Evaluation:
    """The reports over the given episodes.

    Args:
        env_ids: Names of the reports, and the registered id of each environment.
        agent: Name of the agent.
        records: The episodes, one for each key.
    """
    ordered = sorted(records, key=lambda record: record.key)

    def report(env_id: str, chosen: list[EpisodeRecord]) -> EnvironmentReport:
        return summarise(env_id, agent, [r.trajectory for r in chosen], [r.usage for r in chosen])

    reports = {name: report(name, [r for r in ordered if r.key.env_id == id]) for name, id in env_ids.items()}
    return Evaluation(reports, report(OVERALL, ordered))


class ResultsFolder(AbstractContextManager["ResultsFolder"]):
    """An evaluation's folder, open for writing. A context manager.

    A record is on its way to the disk when `add` returns: the death of this process loses nothing, a power cut may lose
    the last seconds. A last line that was cut is dropped on opening.

    Args:
        path: The folder; made when missing.
        agent: Identity of the agent.
        environments: Identity of each environment by its id. More may be added to a folder later.

    Raises:
        ValueError: The folder has results of another agent, of another set-up of an environment, or damaged ones, or
            another evaluation is writing to it.
    """

    def __init__(
        self, path: str | Path, agent: Mapping[str, Any], environments: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"results go into a folder, but '{self.path}' is a file")
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = _open_alone(self.path / EPISODES)
        try:
            self._check_and_write_settings(agent, environments)
            self.records = self._resume()
        except BaseException:
            self._file.close()
            raise

    def _check_and_write_settings(
        self, agent: Mapping[str, Any], environments: Mapping[str, Mapping[str, Any]]
    ) -> None:
        known: dict[str, Any] = {"format": _FORMAT, "agent": dict(agent), "environments": {}}
        if (self.path / SETTINGS).exists():
            known = _read_settings(self.path)
            played = {id: known["environments"][id] for id in environments if id in known["environments"]}
            changed = differences(
                {"agent": known["agent"], **played}, {"agent": agent, **{id: environments[id] for id in played}}
            )
            if changed:
                raise ValueError(
                    f"the results in '{self.path}' were made with other settings: {'; '.join(changed)}; "
                    "resume with the same settings, or choose another folder"
                )
        elif (self.path / EPISODES).stat().st_size:
            raise ValueError(
                f"'{self.path}' holds episodes but no {SETTINGS}, so nobody knows how they were made; "
                "choose another folder"
            )
        known["environments"] |= {id: dict(identity) for id, identity in environments.items()}
        with written_whole(self.path / SETTINGS) as partial:
            partial.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")

    def _resume(self) -> dict[EpisodeKey, EpisodeRecord]:
        """What is there already; afterwards the file ends with a whole line."""
        content = (self.path / EPISODES).read_bytes()
        records, size = _parse(self.path / EPISODES, content)
        if size < len(content):
            self._file.truncate(size)
        elif content and not content.endswith(b"\n"):
            self._file.write(b"\n")
            self._file.flush()
        return records

    def add(self, record: EpisodeRecord) -> None:
        """Writes an episode down."""
        self._file.write(record.to_json().encode() + b"\n")
        self._file.flush()
        self.records[record.key] = record

    def close(self) -> None:
        """Ends the writing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_alone(path: Path) -> IO[bytes]:
    """Opens for appending, locked. The lock ends with the process, however that ends."""
    file = path.open("ab")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"another evaluation is writing to '{path.parent}'; wait for it, or choose another folder"
            ) from None
        except OSError:
            return file  # a file system without locks
    return file


def _parse(path: Path, content: bytes) -> tuple[dict[EpisodeKey, EpisodeRecord], int]:
    """The records of a file, and how many bytes of it are whole lines."""
    records: dict[EpisodeKey, EpisodeRecord] = {}
    size = 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = EpisodeRecord.from_json(line.decode())
        except ValueError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break  # the process died while it was writing
            raise ValueError(f"'{path}' is damaged in line {number}: {error}") from error
        if record.key in records and records[record.key].finished:
            raise ValueError(f"'{path}' is damaged in line {number}: {tuple(record.key)} was finished before")
        records[record.key] = record
        size += len(line)
    return records, size


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if settings["format"] != _FORMAT:
            raise ValueError(f"it has format {settings['format']!r}, this version reads {_FORMAT}")
        return {key: settings[key] for key in ("format", "agent", "environments")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"'{path}' cannot be read ({error}); choose another folder") from error


def agent_identity(agent: Agent, kwargs: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """What tells an agent from others, as JSON values.

    An agent with a method `settings` says so itself; of any other, the class, the name and the arguments are known.

    Args:
        agent: The agent.
        kwargs: Arguments it was made with, if it was made by name.
        folder: The run or model folder it was made from; what the model files hold becomes part of the identity.
    """
    settings = getattr(agent, "settings", None)
    known = settings() if callable(settings) else {k: v for k, v in kwargs.items() if k not in _SECRETS}
    identity = {"name": agent.name, "class": _plain(type(agent)), "settings": _plain(known)}
    return identity if folder is None else {**identity, "model": _fingerprint(folder)}


def env_identity(spec: EnvSpec, max_turns: int | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """How an environment is registered and limited, as JSON values.

    Args:
        spec: The registration.
        max_turns: Turn limit in place of the registered one.
        kwargs: Arguments of the constructor, over the registered ones.
    """
    limits: dict[str, Any] = {}
    for wrapper in spec.additional_wrappers:
        limits |= {name: _plain(value) for name, value in (wrapper.kwargs or {}).items() if name != "tags"}
    if max_turns is not None:
        limits["max_turns"] = max_turns
    return {"entry_point": _plain(spec.entry_point), "kwargs": _plain({**spec.kwargs, **kwargs}), **limits}


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Where two identities differ, one phrase for each place: `agent.name was 'solver' and is 'random'`."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        found = []
        for key in sorted({*before, *now}):
            inner = f"{where}.{key}" if where else str(key)
            found += differences(before.get(key), now.get(key), inner)
        return found
    return [] if before == now else [f"{where} was {before!r} and is {now!r}"]


def _plain(value: Any) -> Any:
    """A JSON value that is the same in another process: functions and classes by name, other objects by class."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(str(inner) for inner in value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _fingerprint(folder: Path) -> str:
    """Digest of the model files of a run (below `model/`) or model folder."""
    digest = hashlib.sha256()
    for pattern in _WEIGHTS:
        for path in sorted([*folder.glob(pattern), *folder.glob(f"model/{pattern}")]):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
