"""Syncs with servers that are played: what each is asked in which order, and what one cannot spoil for the others."""

from __future__ import annotations

import base64
import hashlib
import pickle
from typing import Any

import pytest
import torch

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.transports import TensorTransport
from envgym.engines.sglang.weights import ServerWeights, check_servers, sync_servers
from envgym.errors import ServerError, ServerUnreachableError, WeightSyncError
from envgym.weights import shapes_of

UPDATE = [
    *("/pause_generation", "/begin_weight_update", "/update_weight_version", "/update_weights_from_tensor"),
    *("/update_weights_from_tensor", "/end_weight_update", "/flush_cache", "/weights_checker"),
    *("/update_weight_version", "/continue_generation"),
]
PARAMETERS = ("model.norm.weight", "model.layers.0.input_layernorm.weight")


class Server(SGLangClient):
    """Holds two parameters and the memory for them; `failing` names a call that it does not answer."""

    def __init__(self, port: int) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.calls: list[str] = []
        self.failing: str | None = None
        self.version, self.memory = "default", {"kv_cache", "weights"}
        self.checksums = dict.fromkeys(PARAMETERS, "0" * 16)

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        if path == self.failing:
            raise ServerUnreachableError(f"{self.url} did not answer {path}")
        if method == "POST":
            self.calls.append(path)
        if path == "/server_info":
            return {"dtype": "float32", "device": "cpu", "enable_memory_saver": True}
        if path == "/model_info":
            return {"weight_version": self.version}
        if path == "/weights_checker":
            return {"ranks": [{"checksums": dict(self.checksums)}]}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/release_memory_occupation":
            self.memory -= set(body["tags"])
        elif path == "/resume_memory_occupation":
            if self.memory & set(body["tags"]):
                raise ServerError("it has that memory")
            self.memory |= set(body["tags"])
        elif path == "/update_weights_from_tensor":
            assert "weights" in self.memory
            content = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
            for part in content["metadata"]:
                data = content["flattened_tensor"][part.start_idx : part.end_idx].numpy().tobytes()
                self.checksums[part.name] = hashlib.sha256(data).digest()[:8].hex()
        return {}


def module(value: float) -> torch.nn.Module:
    """One with the parameters that the servers hold."""
    lm = torch.nn.Module()
    lm.model = torch.nn.Module()
    lm.model.norm = torch.nn.LayerNorm(4, bias=False)
    layer = torch.nn.Module()
    layer.input_layernorm = torch.nn.LayerNorm(4, bias=False)
    lm.model.layers = torch.nn.ModuleList([layer])
    for parameter in lm.parameters():
        torch.nn.init.constant_(parameter, value)
    return lm


@pytest.fixture
def clients() -> list[Server]:
    return [Server(port) for port in (7, 8, 9)]


@pytest.fixture
def servers(clients: list[Server]) -> list[ServerWeights]:
    fed = [ServerWeights(client, TensorTransport(), run_id="run") for client in clients]
    sync_servers(module(1.0), fed, version=1, max_bytes=16)
    for client in clients:
        assert client.calls == ["/weights_checker", *UPDATE] and client.version == "run:1"
        client.calls.clear()
    return fed


def test_repeating_a_version_is_harmless(clients: list[Server], servers: list[ServerWeights]) -> None:
    before = dict(clients[0].checksums)
    sync_servers(module(1.0), servers, version=1, max_bytes=16)
    assert all(client.calls == UPDATE and client.version == "run:1" for client in clients)
    assert clients[0].checksums == before


@pytest.mark.parametrize("path", dict.fromkeys(UPDATE))
def test_a_server_that_does_not_answer_does_not_hold_up_the_others(
    path: str, clients: list[Server], servers: list[ServerWeights]
) -> None:
    clients[1].failing = path
    with pytest.raises(
        WeightSyncError, match=r"^Weights of version 2 did not reach every server\. \S+:8 (keeps|is out of)"
    ):
        sync_servers(module(2.0), servers, version=2, max_bytes=16)
    assert [client.version for client in clients] == ["run:2", clients[1].version, "run:2"]
    clients[1].failing = None
    sync_servers(module(2.0), servers, version=2, max_bytes=16)
    assert all(client.version == "run:2" and client.checksums == clients[0].checksums for client in clients)


def test_a_server_that_holds_other_parameters_keeps_all_of_them_as_they_were(
    clients: list[Server], servers: list[ServerWeights]
) -> None:
    del clients[1].checksums[PARAMETERS[0]]
    servers[1].forget()
    misfit = r"\S+:8 was not touched: it does not know 1 parameters"
    with pytest.raises(WeightSyncError, match=f"cannot be given the weights of the model.* {misfit}"):
        check_servers(shapes_of(module(2.0)), servers)
    with pytest.raises(WeightSyncError, match=f"were not sent. {misfit}"):
        sync_servers(module(2.0), servers, version=2)
    assert [client.version for client in clients] == ["run:1"] * 3
    assert all(set(client.calls) <= {"/weights_checker"} for client in clients)


def test_a_sleeping_server_gets_the_memory_of_its_weights_first_and_that_of_its_cache_last(
    clients: list[Server], servers: list[ServerWeights]
) -> None:
    client, server = clients[0], servers[0]
    for _ in range(2):  # saying it twice changes nothing
        server.sleep()
    assert client.memory == set()
    for _ in range(2):
        server.wake()
    assert client.memory == {"weights"}
    client.calls.clear()
    sync_servers(module(2.0), [server], version=2, max_bytes=16)
    end = UPDATE.index("/end_weight_update") + 1
    assert client.calls == [*UPDATE[:end], "/resume_memory_occupation", *UPDATE[end:]]
    assert client.memory == {"kv_cache", "weights"} and client.version == "run:2"


def test_one_that_fails_between_sleep_and_the_end_of_a_sync_gets_all_of_it_with_the_next(
    clients: list[Server], servers: list[ServerWeights]
) -> None:
    client, server = clients[0], servers[0]
    server.sleep()
    server.wake()
    client.failing = "/end_weight_update"
    with pytest.raises(WeightSyncError, match="is out of service"):
        sync_servers(module(2.0), [server], version=2)
    client.failing = None
    sync_servers(module(2.0), [server], version=2)
    assert client.memory == {"kv_cache", "weights"} and client.version == "run:2"


def test_one_that_was_started_again_while_it_slept_has_its_memory(
    clients: list[Server], servers: list[ServerWeights]
) -> None:
    client, server = clients[0], servers[0]
    server.sleep()
    client.memory, client.version = {"kv_cache", "weights"}, "default"
    with pytest.raises(ServerError, match="it has that memory"):
        server.wake()
    server.forget()  # as the engine does
    sync_servers(module(2.0), [server], version=2)
    assert client.version == "run:2"
