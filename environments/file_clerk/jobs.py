"""The jobs of the clerk: what is asked, the files it is asked about, and the files there must be afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from envgym.environments.file_clerk.tree import name, parent

Files = dict[str, str]
"""Contents by path."""
Parameters = Mapping[str, str]

WORDS = ("apple", "brook", "cedar", "delta", "ember", "flint", "grove", "hazel", "iron", "jade", "kiln", "lemon")
PLACES = ("inbox", "desk", "misc", "drafts", "shared", "notes")
TOPICS = ("harbour", "orchard", "tunnel", "garden", "bakery", "museum")
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Job:
    """A kind of job.

    Attributes:
        text: What is asked, with its parameters as fields.
        draw: Draws the parameters and the files that matter, from a source of randomness.
        work: The files there must be afterwards, from those there are and the parameters.
    """

    text: str
    draw: Callable[[np.random.Generator], tuple[Parameters, Files]]
    work: Callable[[Files, Parameters], Files]

    def read(self, text: str) -> Parameters | None:
        """The parameters of a job of this kind; None for any other text."""
        parts, seen = _FIELD.split(self.text), set()
        pattern = ""
        for i, part in enumerate(parts):
            if i % 2 == 0:
                pattern += re.escape(part)
            else:
                pattern += rf"(?P={part})" if part in seen else rf"(?P<{part}>[\w./]+)"
                seen.add(part)
        match = re.fullmatch(pattern, text)
        return None if match is None else match.groupdict()


def draw_job(rng: np.random.Generator) -> tuple[str, Files, Files]:
    """A job: its text, the files there are, and the files there must be.

    Args:
        rng: Source of the job.
    """
    job = JOBS[int(rng.integers(len(JOBS)))]
    parameters, files = job.draw(rng)
    for word in _pick(rng, WORDS, 3):
        files.setdefault(f"/{_pick(rng, PLACES, 1)[0]}/{word}.md", _sentence(rng))
    return job.text.format(**parameters), files, job.work(files, parameters)


def _pick(rng: np.random.Generator, words: tuple[str, ...], number: int) -> list[str]:
    return [words[i] for i in rng.choice(len(words), size=number, replace=False)]


def _sentence(rng: np.random.Generator) -> str:
    return " ".join(_pick(rng, WORDS, 3))


def _number(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _draw_sort(rng: np.random.Generator) -> tuple[Parameters, Files]:
    place, first, second = _pick(rng, PLACES, 1)[0], *_pick(rng, ("txt", "csv", "png"), 2)
    kinds = [first, first, second, second, "log"]
    words = _pick(rng, WORDS, len(kinds))
    files = {f"/{place}/{word}.{kind}": _sentence(rng) for word, kind in zip(words, kinds, strict=True)}
    return {"place": f"/{place}", "first": first, "second": second}, files


def _sort(files: Files, p: Parameters) -> Files:
    def target(path: str) -> str:
        for kind in (p["first"], p["second"]):
            if parent(path) == p["place"] and path.endswith(f".{kind}"):
                return f"/{kind}/{name(path)}"
        return path

    return {target(path): content for path, content in files.items()}


def _draw_delete(rng: np.random.Generator) -> tuple[Parameters, Files]:
    words, places = _pick(rng, WORDS, 5), _pick(rng, PLACES, 3)
    files = {f"/{places[i % 3]}/{word}.tmp": _sentence(rng) for i, word in enumerate(words[:3])}
    files |= {f"/{places[0]}/{words[3]}.tmp.txt": _sentence(rng), f"/{places[1]}/tmp-{words[4]}.txt": _sentence(rng)}
    return {"kind": "tmp"}, files


def _delete(files: Files, p: Parameters) -> Files:
    return {path: content for path, content in files.items() if not path.endswith(f".{p['kind']}")}


def _draw_rename(rng: np.random.Generator) -> tuple[Parameters, Files]:
    words = _pick(rng, WORDS, 3)
    return {"place": "/photos"}, {f"/photos/{word}.jpg": f"taken in {_number(rng, 1990, 2020)}" for word in words}


def _rename(files: Files, p: Parameters) -> Files:
    return {
        f"{p['place']}/{content.split()[-1]}-{name(path)}" if parent(path) == p["place"] else path: content
        for path, content in files.items()
    }


def _draw_total(rng: np.random.Generator) -> tuple[Parameters, Files]:
    words = _pick(rng, WORDS, _number(rng, 3, 5))
    files = {f"/invoices/{word}.txt": f"amount {_number(rng, 10, 999)}" for word in words}
    return {"place": "/invoices", "target": f"/{_pick(rng, PLACES, 1)[0]}/total.txt"}, files


def _total(files: Files, p: Parameters) -> Files:
    amounts = [int(content.split()[-1]) for path, content in files.items() if parent(path) == p["place"]]
    return {**files, p["target"]: str(sum(amounts))}


def _draw_topic(rng: np.random.Generator) -> tuple[Parameters, Files]:
    topic, other = _pick(rng, TOPICS, 2)
    words, places = _pick(rng, WORDS, 5), _pick(rng, PLACES, 3)
    files = {
        f"/{places[i % 3]}/{word}.txt": f"{_sentence(rng)}\nabout the {topic if i < 3 else other}"
        for i, word in enumerate(words)
    }
    return {"topic": topic}, files


def _topic(files: Files, p: Parameters) -> Files:
    return {f"/{p['topic']}/{name(x)}" if p["topic"] in content else x: content for x, content in files.items()}


def _draw_duplicates(rng: np.random.Generator) -> tuple[Parameters, Files]:
    words, place = sorted(_pick(rng, WORDS, 6)), "/records"
    texts = [f"{i} {_sentence(rng)}" for i in range(3)]
    owners = rng.permutation([0, 0, 1, 1, 1, 2])
    return {"place": place}, {f"{place}/{w}.txt": texts[int(i)] for w, i in zip(words, owners, strict=True)}


def _duplicates(files: Files, p: Parameters) -> Files:
    kept, seen = {}, set()
    for path in sorted(files):
        if parent(path) != p["place"] or files[path] not in seen:
            kept[path] = files[path]
        if parent(path) == p["place"]:
            seen.add(files[path])
    return kept


def _draw_backup(rng: np.random.Generator) -> tuple[Parameters, Files]:
    words = _pick(rng, WORDS, _number(rng, 3, 4))
    return {"place": "/config", "target": "/backup"}, {f"/config/{word}.ini": _sentence(rng) for word in words}


def _backup(files: Files, p: Parameters) -> Files:
    copies = {f"{p['target']}/{name(path)}": content for path, content in files.items() if parent(path) == p["place"]}
    return files | copies


def _draw_replace(rng: np.random.Generator) -> tuple[Parameters, Files]:
    old, new = _pick(rng, ("north", "south", "east", "west"), 2)
    words, places = _pick(rng, WORDS, 4), _pick(rng, PLACES, 2)
    files = {
        f"/{places[i % 2]}/{word}.conf": f"name {word}\nserver {old if i < 2 else new}" for i, word in enumerate(words)
    }
    return {"old": old, "new": new}, files


def _replace(files: Files, p: Parameters) -> Files:
    return {path: content.replace(f"server {p['old']}", f"server {p['new']}") for path, content in files.items()}


def _draw_archive(rng: np.random.Generator) -> tuple[Parameters, Files]:
    year = _number(rng, 2012, 2018)
    years = [year - _number(rng, 1, 4), year - 1, year, year + 1, year + _number(rng, 1, 4)]
    words = _pick(rng, WORDS, len(years))
    files = {f"/reports/{y}-{word}.txt": _sentence(rng) for y, word in zip(years, words, strict=True)}
    return {"place": "/reports", "year": str(year), "target": "/archive"}, files


def _archive(files: Files, p: Parameters) -> Files:
    def old(path: str) -> bool:
        return parent(path) == p["place"] and int(name(path)[:4]) < int(p["year"])

    return {f"{p['target']}/{name(path)}" if old(path) else path: content for path, content in files.items()}


def _draw_merge(rng: np.random.Generator) -> tuple[Parameters, Files]:
    number = _number(rng, 3, 4)
    files = {f"/parts/part{i + 1}.txt": f"{i + 1} {_sentence(rng)}" for i in rng.permutation(number)}
    return {"place": "/parts", "target": "/parts/whole.txt"}, files


def _merge(files: Files, p: Parameters) -> Files:
    parts = sorted(path for path in files if parent(path) == p["place"])
    rest = {path: content for path, content in files.items() if path not in parts}
    return rest | {p["target"]: "\n".join(files[path] for path in parts)}


JOBS = (
    Job(
        "Move every .{first} file of {place} into /{first} and every .{second} file of {place} into /{second}.",
        _draw_sort,
        _sort,
    ),
    Job("Delete every file whose name ends in .{kind}, wherever it is.", _draw_delete, _delete),
    Job(
        "Rename every file in {place}: put the year its text says it was taken in and a dash before its name, as in "
        "1999-name.jpg.",
        _draw_rename,
        _rename,
    ),
    Job("Add up the amounts of all files in {place} and write the sum, in digits, to {target}.", _draw_total, _total),
    Job("Move every file whose text mentions {topic} into /{topic}, wherever it is.", _draw_topic, _topic),
    Job(
        "Some files in {place} have the same text. Of each such group keep the one with the alphabetically first name "
        "and delete the others.",
        _draw_duplicates,
        _duplicates,
    ),
    Job("Copy every file of {place} to {target} under the same name.", _draw_backup, _backup),
    Job("In every file, change the line server {old} to server {new}.", _draw_replace, _replace),
    Job("Move the files of {place} whose name starts with a year before {year} to {target}.", _draw_archive, _archive),
    Job(
        "Write the lines of the part files in {place}, in the order of their numbers, to {target}, and delete the "
        "parts.",
        _draw_merge,
        _merge,
    ),
)
