"""Puts this folder on the path, so that tests and the processes they start can import the fakes beside it."""

import os

import pytest

from envgym.engines.sglang.install import sglang_python
from envgym.errors import MissingDependencyError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def requires_sglang() -> None:
    """Skips where SGLang for the CPU is not installed; fails instead if ENVGYM_REQUIRE has `sglang`."""
    try:
        sglang_python("cpu")
    except MissingDependencyError as error:
        if "sglang" in os.environ.get("ENVGYM_REQUIRE", "").split(","):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
