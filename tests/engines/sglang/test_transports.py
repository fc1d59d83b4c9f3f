"""The ways that weights travel, without a server: what the one by way of the disk leaves there, and when it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.transports import DiskTransport, ServedWeights
from envgym.errors import ServerError, ServerUnreachableError

BUCKETS = [[("a", torch.ones(3))], [("b", torch.zeros(2))]]
ONE_VERSION = ["model-00001.safetensors", "model-00002.safetensors", "model.safetensors.index.json"]


class Server(SGLangClient):
    """Obeys, and remembers the files it found; loading can fail."""

    def __init__(self, url: str = "http://127.0.0.1:9") -> None:
        super().__init__(url)
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


def server_of(client: SGLangClient, dtype: torch.dtype = torch.float32) -> ServedWeights:
    return ServedWeights(client, frozenset("ab"), {}, dtype, 1, on_gpu=False, memory_saver=False)


def load(transport: DiskTransport, servers: list[ServedWeights], version: int) -> None:
    transport.begin_sync()
    for bucket in BUCKETS:
        for server in servers:
            transport.send(server, [(name, tensor.to(server.dtype)) for name, tensor in bucket])
    for server in servers:
        transport.load(server, version)


def weights_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("model*"))


def version(number: int, dtype: str = "float32") -> list[str]:
    return [f"{dtype}/{number:06d}/{name}" for name in ONE_VERSION]


@pytest.fixture
def transport(tmp_path: Path) -> DiskTransport:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 7}')
    return DiskTransport(tmp_path / "weights", model_folder=tmp_path / "model")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def test_one_version_is_written_once_for_all_servers_and_lies_there_until_the_end(
    transport: DiskTransport, root: Path
) -> None:
    clients = [Server("http://127.0.0.1:8"), Server("http://127.0.0.1:9")]
    for number in (1, 2, 2):
        load(transport, [server_of(client) for client in clients], number)
        assert weights_below(root) == version(number)
        assert [client.loaded for client in clients] == [["config.json", *ONE_VERSION]] * 2
    transport.close()
    assert weights_below(root) == []
    load(transport, [server_of(clients[0])], 3)  # closed, it can be used again
    assert weights_below(root) == version(3)


def test_servers_of_two_types_have_a_folder_each(transport: DiskTransport, root: Path) -> None:
    load(transport, [server_of(Server()), server_of(Server("http://127.0.0.1:8"), torch.bfloat16)], 1)
    assert weights_below(root) == version(1, "bfloat16") + version(1)


def test_the_configuration_stays_since_the_server_names_that_folder_as_its_model_s(
    transport: DiskTransport, root: Path
) -> None:
    load(transport, [server_of(Server())], 4)
    transport.close()
    assert [str(file.relative_to(root)) for file in root.rglob("*.*")] == ["float32/000004/config.json"]


def test_what_an_interrupted_update_wrote_goes_too(transport: DiskTransport, root: Path) -> None:
    server = server_of(Server())
    load(transport, [server], 1)
    transport.begin_sync()
    transport.send(server, BUCKETS[0])
    assert len(weights_below(root)) == 4
    transport.close()
    assert weights_below(root) == []


@pytest.mark.parametrize(
    ("failure", "kept"), [(ServerUnreachableError("no answer in time"), version(1)), (ServerError("no"), [])]
)
def test_a_server_that_may_still_read_a_version_keeps_it_and_one_that_refused_it_does_not(
    failure: ServerError, kept: list[str], transport: DiskTransport, root: Path
) -> None:
    client = Server()
    client.failure = failure
    with pytest.raises(type(failure)):
        load(transport, [server_of(client)], 1)
    transport.close()
    assert weights_below(root) == kept
    client.alive = False
    transport.close()
    assert weights_below(root) == []
