"""What docs/serving.md says can be typed, can be typed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from envgym.engines import SGLangServer

DOCUMENT = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
SECTION = DOCUMENT.partition("## Sample from servers\n")[2].partition("\n## ")[0]


def test_the_example_of_sampling_runs_as_it_stands(
    sglang_server: SGLangServer, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    urls, model = '["http://127.0.0.1:30000", "http://127.0.0.1:30001"]', '"path/to/model"'
    assert program.count(urls) == program.count(model) == 1
    namespace: dict[str, Any] = {"__name__": "document"}
    program = program.replace(urls, repr([sglang_server.url])).replace(model, repr(str(tiny_model_folder)))
    exec(compile(program, "serving.md", "exec"), namespace)
    episodes = namespace["episodes"]
    assert [len(turns) for turns in episodes] == [2] * 8
    for turn in (turn for turns in episodes for turn in turns):
        assert 1 <= len(turn.token_ids) <= 16
        for token, logprob, support in zip(turn.token_ids, turn.logprobs, turn.support, strict=True):
            assert token in support and len(support) == 5
            assert -math.inf < logprob < 0
    shown = capsys.readouterr().out
    assert shown.count("among the 5 tokens") == sum(len(turn.token_ids) for turn in episodes[0])
