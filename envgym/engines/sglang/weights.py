"""The weights of SGLang servers: one module is given to the servers of all ranks, and each is checked to hold it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from envgym.engines.sglang.checksums import ExpectedWeights
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.request import version_name
from envgym.engines.sglang.transports import ServedWeights, Transport
from envgym.errors import ModelError, ServerError, ServerUnreachableError, WeightSyncError
from envgym.weights import BUCKET_BYTES, Shapes, shapes_of, weight_buckets

Bucket = Sequence[tuple[str, Tensor]]

_DTYPES = {"float32": torch.float32, "float": torch.float32, "bfloat16": torch.bfloat16}
_DTYPES |= {"float16": torch.float16, "half": torch.float16}
_HEAD = "lm_head.weight"

INCOMPLETE = "incomplete"
"""Version of a server between the first bucket of an update and its verification."""

_AS_STARTED = "default"
"""Version of a server that nobody has given weights yet."""

_log = logging.getLogger(__name__)


class ServerWeights:
    """The weights of one SGLang server, as whoever feeds it knows them.

    When an update fails, the server's checksums decide: a server whose weights are still the last verified ones goes on
    with them; any other is left paused, named `INCOMPLETE`. It is then asked anew what it holds, and the next update,
    which brings all weights, makes it good.

    Args:
        client: The server.
        transport: How weights get there.
        run_id: Whose weights it is given, as a part of the name of their version; see `version_name`.
    """

    def __init__(self, client: SGLangClient, transport: Transport, *, run_id: str = "") -> None:
        self.client, self.transport = client, transport
        self._run_id = run_id
        self._served: ServedWeights | None = None
        self._verified: list[dict[str, str]] | None = None
        self._released: tuple[str, ...] = ()

    def served(self) -> ServedWeights:
        """What the server holds; asked once, and again after a failure.

        Raises:
            ServerError: It did not answer.
            WeightSyncError: It is of a kind that cannot be updated from here.
        """
        if self._served is None:
            self._served, checksums = ask_server(self.client)
            version = self._version()
            # What an update has left half-way must not be taken for weights to go back to.
            self._verified = None if version == INCOMPLETE else checksums
            if version == _AS_STARTED:
                self._released = ()
        return self._served

    def check(self, shapes: Shapes) -> ExpectedWeights:
        """Compares names, and shapes where the server's model folder can be read, with what the server holds.

        Returns:
            What it should hold after an update with such parameters.

        Raises:
            WeightSyncError: They differ.
            ServerError: It did not answer.
        """
        try:
            served = self.served()
            for name, shape in shapes.items():
                held = served.shapes.get(name, shape)
                if tuple(shape) != held:
                    raise WeightSyncError(f"parameter '{name}' has shape {tuple(shape)}, but the server's is {held}")
            return ExpectedWeights(shapes, served.names, num_ranks=served.num_ranks, on_gpu=served.on_gpu)
        except WeightSyncError as error:
            raise WeightSyncError(f"{self.client.url} was not touched: {error}.") from error

    def update(self, expected: ExpectedWeights, version: int) -> Generator[None, Bucket | None]:
        """One update, which is sent the buckets: None begins it, then come the buckets, and None completes it.

        The server is paused (running requests are put back into the queue), given the buckets, rid of its prefix cache,
        compared with the checksum of every parameter, told the name of the version, and goes on. Tokens sampled before
        carry the old version's name and tokens after it the new one's, also within one request. Closed half-way it ends
        as after a failure.

        Raises:
            WeightSyncError: Something failed; the message says whether the server goes on with its old weights.
        """
        served, client, transport = self.served(), self.client, self.transport
        before: str | None = None
        in_session = False
        try:
            transport.open(served)
            if transport.loads_buckets:
                client.pause()
                in_session = True
                self._begin_session()
            while (bucket := (yield)) is not None:
                tensors = [(name, expected.take(name, tensor, served.dtype)) for name, tensor in bucket]
                if transport.loads_buckets and before is None:
                    before = self._mark_incomplete()
                transport.send(served, tensors)
            expected.check_complete()
            if transport.loads_buckets:
                client.post("/end_weight_update")
                in_session = False
            else:
                client.pause()
                before = self._mark_incomplete()
                transport.load(served, version)
            if self._released:
                client.post("/resume_memory_occupation", tags=self._released)
            client.flush_cache()
            checksums = client.weight_checksums()
            expected.check_served(checksums)
            client.name_weights(version_name(version, self._run_id))
            client.resume()
            self._verified, self._released = checksums, ()
        except GeneratorExit:
            _log.warning("%s", self._failed(WeightSyncError("the update was given up"), before, in_session))
            raise
        except Exception as error:
            raise self._failed(error, before, in_session) from error
        yield

    def sleep(self) -> None:
        """Pauses the server and takes its memory; the update after `wake` gives it back that of the cache.

        Raises:
            WeightSyncError: The server was started without its memory saver.
            ServerError: It did not obey.
        """
        if not self.served().memory_saver:  # asked now, since what is released cannot be asked
            raise WeightSyncError(
                f"{self.client.url} cannot release its memory; start it with enable_memory_saver, or keep it resident"
            )
        if not self._released:
            self.client.pause()
            self._released = ("kv_cache", "weights")
            self.client.post("/release_memory_occupation", tags=self._released)

    def wake(self) -> None:
        """Gives the server the memory of its weights, which are undefined until the next update.

        The cache's comes after the last bucket: sharded weights, a bucket and the server's weights are all there is.

        Raises:
            ServerError: It did not obey.
        """
        if "weights" in self._released:
            self._verified, self._released = None, ("kv_cache",)
            self.client.post("/resume_memory_occupation", tags=("weights",))

    def forget(self) -> None:
        """Has everything asked anew: the server may be another one than before."""
        if self._served is not None:
            self.transport.abandon(self._served)
        self._served = self._verified = None

    def _begin_session(self) -> None:
        try:
            self.client.post("/begin_weight_update")
        except ServerUnreachableError:
            raise
        except ServerError as refusal:  # somebody else may have left a session open
            try:
                self.client.post("/end_weight_update")
            except ServerError:
                raise refusal from None
            self.client.post("/begin_weight_update")

    def _mark_incomplete(self) -> str:
        """Marks the server before it may load anything, for whoever comes after this process; returns the old name."""
        before = self._version()
        self.client.name_weights(INCOMPLETE)
        return before

    def _version(self) -> str:
        return str(self.client.model_info().get("weight_version"))

    def _failed(self, error: Exception, before: str | None, in_session: bool) -> WeightSyncError:
        """Lets the server go on if its weights are the old ones, else leaves it paused; returns the error that says so.

        Args:
            error: What failed.
            before: The name of the weights before the first of them may have changed; None where none has.
            in_session: Whether a session for updates may be open.
        """
        assert self._served is not None
        self.transport.abandon(self._served)
        try:
            if self._released:
                raise error
            if in_session:
                self._end_session()
            if self._verified is None or (before is not None and self.client.weight_checksums() != self._verified):
                raise WeightSyncError(f"its weights are partly new: {error}")
            if before is not None:
                self.client.flush_cache()
                self.client.name_weights(before)
            self.client.resume()
            version = self._version()
        except Exception as failure:
            self.forget()
            reason = failure if isinstance(failure, WeightSyncError) else error
            return WeightSyncError(f"{self.client.url} is out of service: {reason}.")
        return WeightSyncError(f"{self.client.url} keeps its weights of version {version}: {error}.")

    def _end_session(self) -> None:
        try:
            self.client.post("/end_weight_update")
        except ServerUnreachableError:
            raise
        except ServerError as refusal:
            _log.debug("no session to close: %s", refusal)


# -- one module, the servers of all ranks -----------------------------------------------------------------------------


def servers_of_rank(
    clients: Sequence[SGLangClient], transport: Transport, *, rank: int, num_ranks: int, run_id: str = ""
) -> list[ServerWeights]:
    """The servers that a rank feeds: server k is that of rank k modulo the number of ranks.

    Where all servers load the same files, rank 0 feeds all of them.

    Args:
        clients: All servers, in the same order on every rank.
        transport: How weights get there.
        rank: This rank.
        num_ranks: Number of ranks.
        run_id: See `ServerWeights`.
    """
    feeders = num_ranks if transport.loads_buckets else 1
    mine = [client for place, client in enumerate(clients) if place % feeders == rank]
    return [ServerWeights(client, transport, run_id=run_id) for client in mine]


def check_servers(shapes: Shapes, servers: Sequence[ServerWeights]) -> None:
    """Compares parameters with those that the servers of all ranks hold; a collective that changes nothing.

    Args:
        shapes: The parameters by Hugging Face name.
        servers: Those that this rank feeds; may be empty.

    Raises:
        WeightSyncError: A server of some rank holds others. Raised on every rank.
    """
    _fitting(shapes, servers, "The servers cannot be given the weights of the model that is trained", [])


@torch.no_grad()
def sync_servers(
    module: nn.Module, servers: Sequence[ServerWeights], *, version: int, max_bytes: int = BUCKET_BYTES
) -> None:
    """Gives the servers of all ranks the present weights of a module; a collective of all ranks.

    All of them are asked first whether the parameters fit, and nothing changes unless they do. A server that does not
    answer or fails afterwards does not hold up the others: the sync goes on without it, and then every rank raises the
    same error.

    Args:
        module: The model, under its Hugging Face names.
        servers: Those that this rank feeds; may be empty.
        version: What the new weights are called.
        max_bytes: Size of a bucket.

    Raises:
        WeightSyncError: A server of some rank holds other parameters, or failed. Raised on every rank.
    """
    failures: list[str] = []
    fitting = _fitting(shapes_of(module), servers, f"Weights of version {version} were not sent", failures)
    for transport in {server.transport for server in fitting}:
        transport.begin_sync()
    updates = {server: server.update(expected, version) for server, expected in fitting.items()}

    def send(bucket: Bucket | None) -> None:
        for server, update in list(updates.items()):
            try:
                update.send(bucket)
            except Exception as error:
                del updates[server]
                kind = "" if isinstance(error, WeightSyncError) else f"{type(error).__name__}: "
                failures.append(f"{kind}{error}")

    try:
        send(None)
        for bucket in weight_buckets(module, max_bytes=max_bytes):
            send(bucket)
        send(None)
    finally:  # half-way where another rank is gone, or this one is being stopped
        for update in updates.values():
            update.close()
    _raise_together(f"Weights of version {version} did not reach every server", failures)


def _fitting(
    shapes: Shapes, servers: Sequence[ServerWeights], problem: str, failures: list[str]
) -> dict[ServerWeights, ExpectedWeights]:
    """What each server that answers should hold after an update; adds the others to `failures`."""
    mismatches, fitting = [], {}
    for server in servers:
        try:
            fitting[server] = server.check(shapes)
        except WeightSyncError as error:
            mismatches.append(str(error))
        except ServerError as error:
            server.forget()
            failures.append(f"{server.client.url} is out of service: {error}.")
    _raise_together(problem, mismatches)
    return fitting


def _raise_together(problem: str, failures: list[str]) -> None:
    """Raises on all ranks if there is a failure on any; a collective.

    Raises:
        WeightSyncError: Its message lists the failures of all ranks.
    """
    shared: list[Any] = [failures]
    if dist.is_initialized() and dist.get_world_size() > 1:
        shared = [None] * dist.get_world_size()
        dist.all_gather_object(shared, failures)
    found = [
        f"rank {rank}: {failure}" if len(shared) > 1 else failure
        for rank, failed in enumerate(shared)
        for failure in failed
    ]
    if found:
        raise WeightSyncError(f"{problem}. " + " ".join(found))


# -- what servers hold ------------------------------------------------------------------------------------------------


def ask_server(client: SGLangClient) -> tuple[ServedWeights, list[dict[str, str]]]:
    """What a server holds, and its checksum of each parameter by tensor-parallel rank.

    Raises:
        ServerError: It did not answer.
        WeightSyncError: It is of a kind whose weights cannot be told from here.
    """
    info, checksums = client.server_info(), client.weight_checksums()
    if info.get("pp_size", 1) != 1 or info.get("dp_size", 1) != 1:
        raise WeightSyncError("pipeline and data parallel servers are not supported; use tensor parallelism")
    dtype = _DTYPES.get(info.get("dtype", "auto").removeprefix("torch."))
    if dtype is None:
        raise WeightSyncError(
            f"the type of the server's weights is '{info.get('dtype')}'; start it with --dtype float32 or bfloat16"
        )
    served = ServedWeights(
        client,
        names=frozenset(name for rank in checksums for name in rank),
        shapes=configured_shapes(info.get("model_path", "")),
        dtype=dtype,
        num_ranks=info.get("tp_size", 1),
        on_gpu=info.get("device") != "cpu",
        memory_saver=bool(info.get("enable_memory_saver")),
    )
    return served, checksums


def configured_shapes(folder: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model that a folder configures; empty where it cannot be read from here."""
    if not (Path(folder) / "config.json").is_file():
        return {}
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except Exception:  # a model that this version of transformers does not know; its names are checked all the same
        _log.debug("the shapes of the server's model are not known", exc_info=True)
        return {}
    return shapes_of(model)


def check_served_weights(clients: Sequence[SGLangClient], folder: Path) -> None:
    """Compares the checksum of every parameter of servers with the weights in a folder.

    Reads the whole folder once, a parameter at a time. A server whose parameters cannot be told from here, for example
    one that quantises them, is not compared, and a warning says so.

    Args:
        clients: The servers.
        folder: A Hugging Face-format folder with safetensors weights.

    Raises:
        ModelError: A server holds other weights, for example those that a training run has given it.
        ServerError: One does not answer.
    """
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, framework="pt") as content:
            shapes |= {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    compared: list[tuple[ServedWeights, Shapes, ExpectedWeights]] = []
    for client in clients:
        try:
            served, _ = ask_server(client)
            held = {name: shape for name, shape in shapes.items() if name != _HEAD or _HEAD in served.names}
            expected = ExpectedWeights(held, served.names, num_ranks=served.num_ranks, on_gpu=served.on_gpu)
        except WeightSyncError as error:
            _log.warning("The weights of %s were not compared with those in '%s': %s", client.url, folder, error)
        else:
            compared.append((served, held, expected))
    for file in files if compared else ():
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dictionary
                tensor = content.get_tensor(name)
                for served, theirs, expected in compared:
                    if name in theirs:  # a tied head may be written down all the same
                        expected.take(name, tensor, served.dtype)
    for served, _, expected in compared:
        try:
            expected.check_served(served.client.weight_checksums())
        except WeightSyncError as error:
            raise ModelError(
                f"{served.client.url} does not hold the weights in '{folder}': {error}; serve that folder, or play "
                "what the server holds (check_weights=False, --agent-arg check_weights=false)"
            ) from error
