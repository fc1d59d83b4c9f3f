"""Real SGLang servers on a tiny model. Starting one takes half a minute, so most tests share one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envgym.errors import MissingDependencyError
from envgym.policies import SGLangServer
from envgym.policies.sglang_install import sglang_python
from envgym.policies.tiny_model import create_model


@pytest.fixture(scope="session")
def requires_sglang() -> None:
    """Skips where SGLang for the CPU is not installed; fails instead if ENVGYM_REQUIRE has `sglang`."""
    try:
        sglang_python("cpu")
    except MissingDependencyError as error:
        if "sglang" in os.environ.get("ENVGYM_REQUIRE", "").split(","):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 0.12 million parameters with a byte-level tokenizer, context 1024."""
    return create_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def sglang_server(requires_sglang: None, tiny_model_folder: Path) -> Iterator[SGLangServer]:
    """A healthy server on the tiny model. Tests that change its weights or stop it start their own."""
    with SGLangServer(tiny_model_folder, "cpu") as server:
        yield server
