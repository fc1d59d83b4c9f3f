"""docs/internals.md: its examples run as they stand there, and none is longer than promised."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from envgym.config import Section
from envgym.engines import Engine
from envgym.training import train

DOCUMENT = (Path(__file__).parents[2] / "docs" / "internals.md").read_text(encoding="utf-8")
MOST_LINES = 20
SHARED, *EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
SEAMS = re.findall(r"^### (.*)$", DOCUMENT, re.MULTILINE)


def namespace() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(SHARED, "docs/internals.md", "exec"), names)
    return names


def test_every_seam_has_an_example_that_is_short() -> None:
    assert len(EXAMPLES) == len(SEAMS) >= 6
    lengths = [len([line for line in example.splitlines() if line.strip()]) for example in EXAMPLES]
    assert max(lengths) <= MOST_LINES, dict(zip(SEAMS, lengths, strict=True))


@pytest.mark.parametrize("seam", SEAMS)
def test_the_example_of_a_seam_runs(seam: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "example", ModuleType("example"))
    names = namespace()
    exec(compile(EXAMPLES[SEAMS.index(seam)], "docs/internals.md", "exec"), names)
    runs = list((tmp_path / "runs").glob("*/metrics.jsonl")) if (tmp_path / "runs").exists() else []
    assert len(runs) == (seam not in ("Agent", "Engine"))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_engine_of_the_example_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class BorrowingConfig(Section):
        kind: Literal["borrowing"] = "borrowing"

    names = namespace()
    exec(compile(EXAMPLES[SEAMS.index("Engine")], "docs/internals.md", "exec"), names)
    folder: Any = ModuleType("envgym.engines.borrowing")
    folder.make_engine = names["make_engine"]
    monkeypatch.setitem(sys.modules, folder.__name__, folder)
    assert issubclass(names["Borrowing"], Engine)
    config = names["small"](str(tmp_path / "run")).model_copy(update={"policy": BorrowingConfig()})
    result = train(config, progress=False)
    assert (result.model_dir / "config.json").is_file() and result.metrics["policy/first_ratio_max"] == pytest.approx(1)
