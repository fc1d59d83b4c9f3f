"""Three ways to give SGLang servers new weights: right afterwards, and safe when they fail."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from served_play import wait_until_running
from tiny_learner import on_ranks
from torch.distributed.device_mesh import init_device_mesh

from envgym.engines import SGLangServer
from envgym.engines.sglang.client import SGLangClient, call
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.engines.sglang.transports import make_transport
from envgym.engines.sglang.weights import ServerWeights, servers_of_rank, sync_servers
from envgym.errors import ServerError, ServerUnreachableError, WeightSyncError
from envgym.learner.distributed import shard
from envgym.model_folder import load_model

pytestmark = pytest.mark.slow

WAYS = ("tensors", "distributed", "disk")
PROMPT = [5, 6, 7, 200, 40, 41, 42, 43]
SMALL = 60_000
"""Bytes of a bucket: the tiny model takes nine."""


@pytest.fixture(scope="module")
def servers(requires_sglang: None, tiny_model_folder: Path) -> Iterator[dict[str, SGLangServer]]:
    """One that serves float32 and one that serves bfloat16; both have tied embeddings."""
    options: dict[str, Any] = {"max_total_tokens": 20_000}
    with (
        SGLangServer(tiny_model_folder, "cpu", dtype="float32", **options) as exact,
        SGLangServer(tiny_model_folder, "cpu", dtype="bfloat16", **options) as half,
    ):
        yield {"float32": exact, "bfloat16": half}


@pytest.fixture
def client(servers: dict[str, SGLangServer]) -> SGLangClient:
    return SGLangClient(servers["float32"].url, control_timeout_s=60)


@pytest.fixture
def model(tiny_model_folder: Path) -> Any:
    return changed(load_model(tiny_model_folder), 0)


@pytest.fixture
def served(client: SGLangClient, model: Any, tmp_path: Path) -> Any:
    """The model that the client's server has, as version 1."""
    push(client, "tensors", model, 1, tmp_path)
    return model


def changed(model: Any, seed: int) -> Any:
    """Another model: weights of the same size in another direction."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * parameter.std(correction=0) * torch.randn(parameter.shape, generator=generator) + 0.01)
    return other


def feed(client: SGLangClient, way: Any, tmp_path: Path) -> ServerWeights:
    model_folder = Path(SGLangClient(client.url).model_info()["tokenizer_path"])
    return ServerWeights(client, make_transport(way, folder=tmp_path / "weights", model_folder=model_folder))


def push(client: SGLangClient, way: Any, model: Any, version: int, tmp_path: Path) -> None:
    sync_servers(model, [feed(client, way, tmp_path)], version=version, max_bytes=SMALL)


def ask(client: SGLangClient, tokens: int = 8, prompt: list[int] = PROMPT, timeout_s: float = 120.0) -> dict[str, Any]:
    """One greedy continuation with its log-probabilities."""
    body = {
        "input_ids": prompt,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
    }
    return call(client.url, "POST", "/generate", body, timeout_s=timeout_s)


def logprobs(answer: dict[str, Any]) -> torch.Tensor:
    return torch.tensor([entry[0] for entry in answer["meta_info"]["output_token_logprobs"]])


@torch.no_grad()
def assert_from(answer: dict[str, Any], model: Any, *, prompt: list[int] = PROMPT, tolerance: float = 1e-4) -> None:
    """What was sampled has the log-probabilities that this model gives it."""
    ids = answer["output_ids"]
    rows = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    want = rows.gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(logprobs(answer), want, atol=tolerance, rtol=0)


def assert_serves(client: SGLangClient, model: Any, version: int, *, tolerance: float = 1e-4) -> None:
    """The server samples from this model, and calls it that version."""
    answer = ask(client)
    assert_from(answer, model, tolerance=tolerance)
    assert answer["meta_info"]["weight_version"] == str(version)


def is_paused(client: SGLangClient) -> bool:
    try:
        ask(client, 1, timeout_s=3.0)
    except ServerUnreachableError as error:
        return isinstance(error.__cause__, TimeoutError)
    return False


# -- right afterwards -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_server_samples_from_the_new_weights(way, client, served, tmp_path):
    assert_from(ask(client), served)
    new = changed(served, 1)
    push(client, way, new, 2, tmp_path)
    assert_serves(client, new, 2)
    with pytest.raises(AssertionError):
        assert_from(ask(client), served)  # the two can be told apart


@pytest.mark.parametrize("way", WAYS)
def test_float32_masters_are_served_in_bfloat16(way, servers, model, tmp_path):
    client = SGLangClient(servers["bfloat16"].url)
    push(client, way, model, 3, tmp_path)  # the checksums say that every rounded weight arrived
    assert_serves(client, copy.deepcopy(model).bfloat16(), 3, tolerance=0.1)


def test_ten_updates_with_the_same_weights_change_no_log_probability(client, served, tmp_path):
    before = ask(client)
    server = feed(client, "tensors", tmp_path)
    for version in range(2, 12):
        sync_servers(served, [server], version=version, max_bytes=SMALL)
        after = ask(client)
        assert after["output_ids"] == before["output_ids"]
        assert torch.equal(logprobs(after), logprobs(before))
        assert after["meta_info"]["weight_version"] == str(version)


@pytest.mark.parametrize("flush", [True, False])
def test_the_prefix_cache_of_the_old_weights_would_be_used_without_the_flush(
    flush, client, served, tmp_path, monkeypatch
):
    prompt = [((7 if flush else 11) * i) % 250 for i in range(300)]
    ask(client, 4, prompt)
    assert ask(client, 4, prompt)["meta_info"]["cached_tokens"] > 250
    if not flush:
        monkeypatch.setattr(SGLangClient, "flush_cache", lambda self: None)
    new = changed(served, 2 + flush)
    push(client, "tensors", new, 2, tmp_path)
    answer = ask(client, 4, prompt)
    if flush:
        assert answer["meta_info"]["cached_tokens"] == 0
        assert_from(answer, new, prompt=prompt)
    else:
        assert answer["meta_info"]["cached_tokens"] > 250
        with pytest.raises(AssertionError):
            assert_from(answer, new, prompt=prompt)
        monkeypatch.undo()
        client.flush_cache()


@pytest.mark.parametrize("way", WAYS)
def test_running_requests_go_on_with_the_new_weights(way, client, served, tmp_path):
    """64 at once: each token carries the version of the weights that gave it, and the log-probability they gave."""
    new = changed(served, 4)
    prompts = [[i, 3, 5, 7 + i] for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        asked = [pool.submit(ask, client, 300, prompt) for prompt in prompts]
        wait_until_running(client.url, 64)
        push(client, way, new, 2, tmp_path)
        answers = [answer.result() for answer in asked]
    crossed = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        spans = [(span["version"], span["start"], span["end"]) for span in answer["meta_info"]["weight_versions"]]
        assert [version for version, _, _ in spans] in (["1"], ["2"], ["1", "2"])
        assert spans[0][1] == 0 and spans[-1][2] == 300
        crossed += len(spans) == 2
        for version, start, end in spans:
            part = {
                "output_ids": answer["output_ids"][start:end],
                "meta_info": {"output_token_logprobs": answer["meta_info"]["output_token_logprobs"][start:end]},
            }
            context = prompt + answer["output_ids"][:start]
            assert_from(part, served if version == "1" else new, prompt=context, tolerance=1e-3)
    assert crossed > 0, "no request was running during the update; make them longer"


# -- from two ranks ---------------------------------------------------------------------------------------------------


def feed_from_two_ranks(urls: list[str], folder: str, weights: str, scratch: str) -> dict[str, Any]:
    """Every way, with either rank as the source of either server; runs on each of two ranks."""
    rank, clients = dist.get_rank(), [SGLangClient(url) for url in urls]
    lm = load_model(folder)
    lm.load_state_dict(torch.load(weights))
    shard(lm, lm.model.layers, init_device_mesh("cpu", (2,)))
    seen: dict[str, Any] = {}
    version = 100
    for way in WAYS:
        for order in (1, -1):
            version += 1
            transport = make_transport(way, folder=Path(scratch) / f"{way}{order}", model_folder=Path(folder))
            mine = servers_of_rank(clients[::order], transport, rank=rank, num_ranks=2)
            sync_servers(lm, mine, version=version, max_bytes=SMALL)
            seen[f"{way}{order}"] = [server.client.url for server in mine]
            dist.barrier()
            seen[f"{way}{order} version"] = [client.model_info()["weight_version"] for client in clients]
            dist.barrier()
    transport = make_transport("distributed", folder=Path(scratch), model_folder=Path(folder))
    alone = servers_of_rank(clients[:1], transport, rank=1 - rank, num_ranks=2)  # only the second rank has a server
    sync_servers(lm, alone, version=200, max_bytes=SMALL)
    transport.close()
    seen["alone"] = len(alone)
    transport = make_transport("tensors", folder=Path(scratch), model_folder=Path(folder))
    gone = Vanishing(urls[1], "/end_weight_update")
    broken = servers_of_rank([gone, clients[0]], transport, rank=1 - rank, num_ranks=2)
    try:
        sync_servers(lm, broken, version=201, max_bytes=SMALL)
    except WeightSyncError as error:
        seen["error"] = str(error)
    return seen


def test_two_ranks_feed_two_servers(servers, model, tiny_model_folder, tmp_path):
    urls = [servers["float32"].url, servers["bfloat16"].url]
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    ranks = on_ranks(2, feed_from_two_ranks, urls, str(tiny_model_folder), str(tmp_path / "weights.pt"), str(tmp_path))
    for way in ("tensors", "distributed"):
        assert [seen[f"{way}1"] for seen in ranks] == [urls[:1], urls[1:]]
        assert [seen[f"{way}-1"] for seen in ranks] == [urls[1:], urls[:1]]
    assert [seen["disk1"] for seen in ranks] == [urls, []]
    versions = [ranks[0][f"{way}{order} version"] for way in WAYS for order in (1, -1)]
    assert versions == [[str(version)] * 2 for version in range(101, 107)]
    assert [seen["alone"] for seen in ranks] == [0, 1]
    assert_from(ask(SGLangClient(urls[0])), model)
    # One server vanished: both ranks say the same, neither waits for the other, and the other server has the weights.
    assert ranks[0]["error"] == ranks[1]["error"]
    assert "rank 1" in ranks[0]["error"] and f"{urls[1]} is out of service" in ranks[0]["error"]
    assert [SGLangClient(url).model_info()["weight_version"] for url in urls] == ["201", "incomplete"]
    push(SGLangClient(urls[1]), "tensors", model, 202, tmp_path)  # in fact it was there; all weights anew mend it
    assert not is_paused(SGLangClient(urls[1]))


# -- safe when it fails -----------------------------------------------------------------------------------------------


class Vanishing(SGLangClient):
    """From the n-th call of one path on, its server cannot be reached."""

    def __init__(self, url: str, path: str, nth: int = 1, *, error: type[ServerError] = ServerUnreachableError) -> None:
        super().__init__(url)
        self.path, self.left, self.error, self.gone = path, nth, error, False

    def _call(self, method: str, path: str, body: Any = None, *, timeout_s: float | None = None) -> Any:
        self.left -= path == self.path
        if self.gone or (path == self.path and self.left == 0):
            self.gone = self.error is ServerUnreachableError
            raise self.error(f"{self.path} failed")
        return super()._call(method, path, body, timeout_s=timeout_s)


UPDATE = {
    "tensors": "/update_weights_from_tensor",
    "distributed": "/update_weights_from_distributed",
    "disk": "/update_weights_from_disk",
}


@pytest.mark.parametrize(
    ("way", "path", "nth"),
    [
        *(("tensors", path, 1) for path in ("/server_info", "/pause_generation", "/begin_weight_update")),
        *(("tensors", path, 1) for path in ("/end_weight_update", "/flush_cache", "/continue_generation")),
        *(("tensors", UPDATE["tensors"], nth) for nth in (1, 2)),
        ("tensors", "/weights_checker", 2),
        ("distributed", "/init_weights_update_group", 1),
        ("distributed", UPDATE["distributed"], 2),
        ("disk", UPDATE["disk"], 1),
    ],
)
def test_a_server_that_vanishes_is_out_of_service_until_it_has_all_weights_anew(
    way, path, nth, client, served, tmp_path
):
    gone = Vanishing(client.url, path, nth)
    server = feed(gone, way, tmp_path)
    with pytest.raises(WeightSyncError, match="is out of service"):
        sync_servers(changed(served, 5), [server], version=9, max_bytes=SMALL)
    with pytest.raises(WeightSyncError, match="is out of service"):
        sync_servers(served, [server], version=10)
    gone.gone, gone.left = False, 0
    sync_servers(served, [server], version=1, max_bytes=SMALL)  # whatever state it was in
    assert_serves(client, served, 1)


@pytest.mark.parametrize(
    ("way", "path"),
    [*UPDATE.items(), ("tensors", "/begin_weight_update"), ("distributed", "/init_weights_update_group")],
)
def test_a_server_that_refuses_before_it_loaded_anything_keeps_the_old_weights(way, path, client, served, tmp_path):
    refusing = Vanishing(client.url, path, error=ServerError)
    with pytest.raises(WeightSyncError, match="keeps its weights of version 1"):
        push(refusing, way, changed(served, 6), 9, tmp_path)
    assert_serves(client, served, 1)


def test_a_half_updated_server_does_not_answer(client, served, tmp_path):
    refusing = Vanishing(client.url, UPDATE["tensors"], 3, error=ServerError)
    with pytest.raises(WeightSyncError, match="is out of service: its weights are partly new"):
        push(refusing, "tensors", changed(served, 7), 9, tmp_path)
    assert is_paused(client)
    assert client.model_info()["weight_version"] == "incomplete"
    # Whoever comes later, too, must not mistake this for weights to go back to.
    with pytest.raises(WeightSyncError, match="is out of service"):
        push(Vanishing(client.url, "/begin_weight_update", error=ServerError), "tensors", served, 10, tmp_path)
    assert is_paused(client)
    push(client, "tensors", served, 11, tmp_path)
    assert_from(ask(client), served)


def test_tensors_that_are_lost_on_the_way_are_noticed(client, served, tmp_path, monkeypatch):
    whole = SGLangClient._call
    lossy = lambda self, *what, **how: None if what[1] == UPDATE["tensors"] else whole(self, *what, **how)  # noqa: E731
    monkeypatch.setattr(SGLangClient, "_call", lossy)
    with pytest.raises(WeightSyncError, match=r"keeps its weights of version 1: 1\d of the server's 18 parameters are"):
        push(client, "tensors", changed(served, 8), 2, tmp_path)
    assert_from(ask(client), served)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["unknown", "missing", "shape"])
def test_parameters_that_do_not_fit_are_refused_before_the_server_is_touched(way, fault, client, served, tmp_path):
    other = changed(served, 9)
    if fault == "unknown":
        other.model.layers[0].register_parameter("extra", torch.nn.Parameter(torch.zeros(3)))
        problem = r"does not know 1 parameters and would ignore them \(the first is 'model\.layers\.0\.extra'\)"
    elif fault == "missing":
        del other.model.norm.weight
        problem = r"1 of its parameters would not be sent \(the first is 'model\.norm\.weight'\)"
    else:
        other.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.zeros(3, 64))
        problem = r"'model\.layers\.1\.mlp\.up_proj\.weight' has shape \(3, 64\), but the server's is \(192, 64\)"
    before = client.weight_checksums()
    with pytest.raises(WeightSyncError, match=f"was not touched: .*{problem}"):
        push(client, way, other, 2, tmp_path)
    assert client.weight_checksums() == before
    assert ask(client)["meta_info"]["weight_version"] == "1"


def test_an_update_that_is_interrupted_lets_the_server_go_on(client, served, tmp_path):
    server = feed(client, "tensors", tmp_path)

    class Interrupted(torch.nn.Module):
        def named_parameters(self, *_: Any, **__: Any) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return served.named_parameters()

    with pytest.raises(KeyboardInterrupt):
        sync_servers(Interrupted(), [server], version=2)
    assert ask(client)["meta_info"]["weight_version"] == "1"
    sync_servers(served, [server], version=3)
    assert ask(client)["meta_info"]["weight_version"] == "3"


def test_the_disk_way_leaves_one_whole_folder(client, served, tmp_path):
    server = feed(client, "disk", tmp_path)
    for version in (2, 3):
        new = changed(served, version)
        sync_servers(new, [server], version=version, max_bytes=SMALL)
    assert [path.name for path in (tmp_path / "weights" / "float32").iterdir()] == ["000003"]
    loaded = load_model(tmp_path / "weights" / "float32" / "000003")
    for name, parameter in new.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name))
    server.transport.close()
    assert not list((tmp_path / "weights").rglob("model*"))
    assert_from(ask(client), new)
    assert SGLangPolicy(client).vocab_size == new.config.vocab_size  # by the configuration that is left


def test_a_server_without_memory_saver_is_not_put_to_sleep(client, served, tmp_path):
    with pytest.raises(WeightSyncError, match="cannot release its memory"):
        feed(client, "tensors", tmp_path).sleep()
    assert_from(ask(client), served)


def test_a_server_killed_during_an_update_does_not_hold_up_the_other(servers, client, model, tmp_path):
    """The last test: it ends the bfloat16 server."""
    dying = servers["bfloat16"]
    pair = [feed(SGLangClient(dying.url), "distributed", tmp_path), feed(client, "distributed", tmp_path)]
    sync_servers(model, pair, version=1)
    other = changed(model, 10)

    class Killing(torch.nn.Module):
        def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
            for place, entry in enumerate(other.named_parameters()):
                if place == 5 and hasattr(self, "asked"):
                    dying.stop()
                yield entry
            self.asked = True

    with pytest.raises(WeightSyncError, match=f"{dying.url} is out of service") as raised:
        sync_servers(Killing(), pair, version=2, max_bytes=SMALL)
    assert client.url not in str(raised.value)
    assert_serves(client, other, 2)
