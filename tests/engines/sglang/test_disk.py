"""What the disk way leaves on the disk, and when it takes it away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.disk import DiskReceiver, WeightsFolders
from envgym.engines.sglang.receiver import ServedModel
from envgym.errors import ServerError, ServerUnreachableError

BUCKETS = [[("a", torch.ones(3))], [("b", torch.zeros(2))]]
ONE_VERSION = ["model-00001.safetensors", "model-00002.safetensors", "model.safetensors.index.json"]


class Server(SGLangClient):
    """Obeys, and remembers the files it found; loading can fail."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.failure: ServerError | None = None
        self.alive = True
        self.loaded: list[str] = []

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        if not self.alive:
            raise ServerUnreachableError(f"{self.url} cannot be reached")
        if path == "/update_weights_from_disk":
            if self.failure is not None:
                raise self.failure
            self.loaded = sorted(file.name for file in Path(body["model_path"]).iterdir())
        return {}


class Receiver(DiskReceiver):
    """Of a server whose weights are float32."""

    def served(self) -> ServedModel:
        return ServedModel(frozenset("ab"), {}, torch.float32, 1, on_gpu=False, memory_saver=False)


def load(receivers: list[Receiver], version: int) -> None:
    for receiver in receivers:
        receiver._open()
    for bucket in BUCKETS:
        for receiver in receivers:
            receiver._send(bucket)
    for receiver in receivers:
        receiver._close(version)


def weights_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("model*"))


def version(number: int) -> list[str]:
    return [f"float32/{number:06d}/{name}" for name in ONE_VERSION]


@pytest.fixture
def folders(tmp_path: Path) -> WeightsFolders:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 7}')
    return WeightsFolders(tmp_path / "weights", model_folder=tmp_path / "model")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def test_one_version_lies_there_until_the_last_receiver_is_closed(folders: WeightsFolders, root: Path) -> None:
    receivers = [Receiver(Server(), folders) for _ in range(3)]
    for number in (1, 2):
        load(receivers[:2], number)
        assert weights_below(root) == version(number)
    for receiver in receivers[:2]:
        receiver.close()
        receiver.close()
    assert weights_below(root) == version(2)  # the third has yet to load
    receivers[2].close()
    assert weights_below(root) == []


def test_the_configuration_stays_since_the_server_names_that_folder_as_its_model_s(
    folders: WeightsFolders, root: Path
) -> None:
    receiver = Receiver(Server(), folders)
    load([receiver], 4)
    receiver.close()
    assert [str(file.relative_to(root)) for file in root.rglob("*.*")] == ["float32/000004/config.json"]


def test_what_an_interrupted_update_wrote_goes_too(folders: WeightsFolders, root: Path) -> None:
    receiver = Receiver(Server(), folders)
    load([receiver], 1)
    receiver._open()
    receiver._send(BUCKETS[0])
    assert len(weights_below(root)) == 4
    receiver.close()
    assert weights_below(root) == []


def test_a_closed_receiver_can_be_used_again(folders: WeightsFolders, root: Path) -> None:
    server = Server()
    receiver = Receiver(server, folders)
    for number in (1, 2, 2):
        load([receiver], number)
        assert server.loaded == ["config.json", *ONE_VERSION]
        assert weights_below(root) == version(number)
        receiver.close()
        assert weights_below(root) == []


def test_a_server_that_may_still_read_a_version_keeps_it(folders: WeightsFolders, root: Path) -> None:
    server = Server()
    receiver = Receiver(server, folders)
    server.failure = ServerUnreachableError("no answer in time")
    with pytest.raises(ServerUnreachableError):
        load([receiver], 1)
    receiver.close()
    assert weights_below(root) == version(1)
    server.alive = False
    receiver.close()
    assert weights_below(root) == []


def test_one_that_refused_it_does_not(folders: WeightsFolders, root: Path) -> None:
    server = Server()
    receiver = Receiver(server, folders)
    server.failure = ServerError("no")
    with pytest.raises(ServerError):
        load([receiver], 1)
    receiver.close()
    assert weights_below(root) == []
