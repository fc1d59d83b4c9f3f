"""The code of docs/learning.md, run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_runs import metrics_of, tiny

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
SMALL = {"num_iterations": 1, "warm_start": None, "kl": None, "critic": {}, "evaluation": {"episodes": 2}}


@pytest.mark.parametrize(("block", "logged"), list(zip(BLOCKS, ("policy/loss", "policy/clipped"), strict=True)))
def test_the_examples_train(tmp_path, block, logged):
    assert len([line for line in block.splitlines() if line.strip()]) <= 20
    exec(compile(block, str(PAGE), "exec"), {"config": tiny(tmp_path / "run", **SMALL), "__name__": "example"})
    assert logged in metrics_of(tmp_path / "run")[-1]
