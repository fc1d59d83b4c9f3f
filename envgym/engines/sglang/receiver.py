"""What the three ways to an SGLang server have in common: order, verification, and what happens when a sync fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from envgym.engines.sglang.checksums import ExpectedWeights
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.weight_version import version_name
from envgym.errors import ServerError, ServerUnreachableError, WeightSyncError
from envgym.weights import Shapes

NamedTensors = Sequence[tuple[str, Tensor]]
OnFailure = Callable[[SGLangClient, Exception], None]

_DTYPES = {"float32": torch.float32, "float": torch.float32, "bfloat16": torch.bfloat16}
_DTYPES |= {"float16": torch.float16, "half": torch.float16}

INCOMPLETE = "incomplete"
"""Version of a server between the first bucket of an update and its verification."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server said about its weights."""

    names: frozenset[str]
    shapes: dict[str, tuple[int, ...]]
    """Hugging Face names and shapes, where the server's model folder can be read from here; else empty."""
    dtype: torch.dtype
    num_ranks: int
    """Size of its tensor parallelism."""
    on_gpu: bool
    memory_saver: bool


class SGLangReceiver:
    """A `WeightReceiver` that feeds one SGLang server; subclasses say how the bytes travel.

    Order of an update: pause (running requests are put back into the queue), open, buckets, close, flush the prefix
    cache, compare the checksum of every parameter, name the version, continue. Tokens sampled before carry the old
    version's name and tokens after it the new one's, also within one request.

    When something fails, the server's checksums decide: a server whose weights are still the last verified ones goes on
    with them; any other is left paused, named `INCOMPLETE`, and reported to `on_failure`. This receiver is then of no
    more use: a server that is started again, or is to be given all weights again, needs a new one.

    Args:
        client: The server.
        on_failure: Takes the server out of use; called at most once, before the error is raised.
        dtype: Type of the server's weights; what it was started with when None.

    Attributes:
        client: The server.
        out_of_use: Whether an update has left it unfit for use.
        lineage: Whose weights it is given, as a part of the name of their version; see `version_name`.
    """

    def __init__(
        self, client: SGLangClient, *, on_failure: OnFailure | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.client = client
        self.out_of_use = False
        self.lineage = ""
        self._on_failure = on_failure
        self._dtype = dtype
        self._served: ServedModel | None = None
        self._verified: list[dict[str, str]] | None = None
        self._expected: ExpectedWeights | None = None
        self._version_before = ""
        self._under_way = self._in_session = self._changed = self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.client.url}')"

    # -- the interface ------------------------------------------------------------------------------------------------

    def check_parameters(self, shapes: Shapes) -> None:
        """Compares names, and shapes where the server's model folder can be read, with what the server holds."""
        if self.out_of_use:
            raise WeightSyncError(
                f"{self.client.url} is out of use; leave its receiver out, or make one for a new server"
            )
        try:
            served = self.served()
            for name, shape in shapes.items():
                held = served.shapes.get(name, shape)
                if tuple(shape) != held:
                    raise WeightSyncError(f"parameter '{name}' has shape {tuple(shape)}, but the server's is {held}")
            self._expected = ExpectedWeights(shapes, served.names, num_ranks=served.num_ranks, on_gpu=served.on_gpu)
        except WeightSyncError as error:
            raise WeightSyncError(f"{self.client.url} was not touched: {error}.") from error
        except ServerError as error:
            self._take_out(error)

    def begin_update(self) -> None:
        """Pauses the server and opens the update."""
        if self._under_way:
            raise WeightSyncError(
                f"a weight update of {self.client.url} is already under way; finish it with end_update first"
            )
        if self._expected is None:
            raise WeightSyncError("call check_parameters before begin_update: the server would ignore unknown names")
        self._under_way, self._changed = True, False
        with self._guarded():
            self._open()

    def receive(self, bucket: Iterable[tuple[str, Tensor]]) -> None:
        """Casts a bucket to the server's type, sends it, and remembers its checksums."""
        expected = self._updating()
        with self._guarded():
            dtype, tensors = self.served().dtype, []
            for name, tensor in bucket:
                expected.check(name, tensor)
                cast = tensor.detach().to(dtype).contiguous()
                expected.add(name, cast)
                tensors.append((name, cast))
            if tensors:
                self._send(tensors)

    def end_update(self, version: int) -> None:
        """Completes the update, verifies it, and lets the server go on as `version`."""
        expected = self._updating()
        with self._guarded():
            expected.check_complete()
            self._close(version)
            if self._released:
                self.client.restore_memory(("kv_cache",))
            self.client.flush_cache()
            checksums = self.client.weight_checksums()
            expected.check_served(checksums)
            self.client.name_weights(version_name(version, self.lineage))
            self.client.resume()
            self._verified, self._released = checksums, False
        self._under_way, self._expected = False, None

    def abort_update(self) -> None:
        """Gives up an update: the server goes on with its old weights if it still has them, else it is out of use."""
        if self._under_way:
            try:
                self._recover(WeightSyncError("the update was given up"))
            except WeightSyncError as error:
                _log.warning("%s", error)

    def close(self) -> None:
        """Frees connections to the server; an update after this makes new ones."""
        self._abandon()

    # -- memory shared with the learner -------------------------------------------------------------------------------

    def release_memory(self) -> None:
        """Pauses the server and takes its memory for the learner until the next update has come.

        The update gives the memory of the weights back before the first bucket and that of the cache after the last, so
        that sharded weights, a bucket and the server's weights are all there ever is at once.

        Raises:
            WeightSyncError: The server was started without its memory saver, or did not obey; it is then out of use.
        """
        if not self.served().memory_saver:  # asked now, since what is released cannot be asked
            raise WeightSyncError(
                f"{self.client.url} cannot release its memory; start it with enable_memory_saver, or keep it resident"
            )
        if self._released:
            return
        try:
            self.client.pause("retract")
            self._released = True
            self.client.release_memory()
        except ServerError as error:
            self._take_out(error)

    # -- what differs between the ways --------------------------------------------------------------------------------

    def _open(self) -> None:
        self._pause()
        self._in_session = True
        try:
            self.client.begin_weight_update()
        except ServerUnreachableError:
            raise
        except ServerError as refusal:  # another receiver may have left its session open
            try:
                self.client.end_weight_update()
            except ServerError:
                raise refusal from None
            self.client.begin_weight_update()

    def _send(self, tensors: NamedTensors) -> None:
        """Hands tensors of the server's type on, on whatever device they are."""
        raise NotImplementedError

    def _close(self, version: int) -> None:
        self.client.end_weight_update()
        self._in_session = False

    def _abandon(self) -> None:
        """Frees what an update that failed leaves behind on this side."""

    # -- shared -------------------------------------------------------------------------------------------------------

    def served(self) -> ServedModel:
        """What the server holds; asked once.

        Raises:
            ServerError: It did not answer.
            WeightSyncError: It is of a kind that cannot be updated from here.
        """
        if self._served is None:
            info, checksums = self.client.server_info(), self.client.weight_checksums()
            if info.get("pp_size", 1) != 1 or info.get("dp_size", 1) != 1:
                raise WeightSyncError("pipeline and data parallel servers are not supported; use tensor parallelism")
            self._served = ServedModel(
                names=frozenset(name for rank in checksums for name in rank),
                shapes=configured_shapes(info.get("model_path", "")),
                dtype=self._dtype or _dtype_of(info.get("dtype", "auto")),
                num_ranks=info.get("tp_size", 1),
                on_gpu=info.get("device") != "cpu",
                memory_saver=bool(info.get("enable_memory_saver")),
            )
            # What another receiver has left half-way must not be taken for weights to go back to.
            self._verified = None if self._version() == INCOMPLETE else checksums
        return self._served

    def _pause(self) -> None:
        self.client.pause("retract")
        if self._released:
            self._verified = None
            self.client.restore_memory(("weights",))

    def _about_to_change(self) -> None:
        """Marks the server, before it may load anything: also whoever comes after this process will know."""
        if not self._changed:
            self._version_before, self._changed = self._version(), True
            self.client.name_weights(INCOMPLETE)

    def _version(self) -> str:
        return str(self.client.model_info().get("weight_version"))

    def _updating(self) -> ExpectedWeights:
        if not self._under_way or self._expected is None:
            raise WeightSyncError(f"no weight update of {self.client.url} is under way; call begin_update first")
        return self._expected

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Settles what becomes of the server when anything fails inside."""
        try:
            yield
        except Exception as error:
            self._recover(error)

    def _recover(self, error: Exception) -> NoReturn:
        """Lets the server go on if its weights are the old ones, else takes it out of use; raises in any case."""
        self._under_way, self._expected = False, None
        self._abandon()
        if self._released:
            self._take_out(error)
        try:
            if self._in_session:
                self._in_session = False
                self._end_session()
            if self._verified is None or (self._changed and self.client.weight_checksums() != self._verified):
                raise WeightSyncError(f"its weights are partly new: {error}")
            if self._changed:
                self.client.flush_cache()
                self.client.name_weights(self._version_before)
            self.client.resume()
            version = self._version()
        except (ServerError, WeightSyncError) as failure:
            self._take_out(failure if isinstance(failure, WeightSyncError) else error)
        raise WeightSyncError(f"{self.client.url} keeps its weights of version {version}: {error}.") from error

    def _end_session(self) -> None:
        try:
            self.client.end_weight_update()
        except ServerError as refusal:
            if not self.client.is_healthy():
                raise
            _log.debug("no session to close: %s", refusal)

    def _take_out(self, error: Exception) -> NoReturn:
        self.out_of_use = True
        if self._on_failure is not None:
            self._on_failure(self.client, error)
        raise WeightSyncError(f"{self.client.url} is out of use: {error}.") from error


def _dtype_of(name: str) -> torch.dtype:
    dtype = _DTYPES.get(name.removeprefix("torch."))
    if dtype is None:
        raise WeightSyncError(
            f"the type of the server's weights is '{name}'; start it with --dtype float32 or bfloat16"
        )
    return dtype


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
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
