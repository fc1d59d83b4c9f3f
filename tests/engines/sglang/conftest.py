"""Real SGLang servers on a tiny model. Starting one takes half a minute, so most tests share one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envgym.engines import SGLangServer
from envgym.engines.embedded.tiny_model import create_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs a server is slow: it starts several processes."""
    for item in items:
        if "requires_sglang" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 0.12 million parameters with a byte-level tokenizer, context 1024."""
    return create_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def sglang_server(requires_sglang: None, tiny_model_folder: Path) -> Iterator[SGLangServer]:
    """A healthy server on the tiny model. Tests that change its weights or stop it start their own."""
    with SGLangServer(tiny_model_folder, "cpu") as server:
        yield server
