"""Weights as safetensors in a folder that the server reads, for clusters that share nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.flat_bucket import flat_size
from envgym.engines.sglang.receiver import NamedTensors, OnFailure, SGLangReceiver
from envgym.errors import ServerError, ServerUnreachableError, WeightSyncError, put_in_place

_PARTIAL = ".partial"
_KEPT = ("config.json", "generation_config.json")


class WeightsFolder:
    """Writes one model folder per version below `root`, whole or not at all, a file for each bucket.

    Receivers of one process may share it: the first that hands a bucket on has it written.

    Args:
        root: Made if needed; everything below it belongs to this object.
        model_folder: Where `config.json` is copied from.
    """

    def __init__(self, root: Path, *, model_folder: Path) -> None:
        self.root = root
        self._model_folder = model_folder
        self._users: list[object] = []
        self._files: dict[str, str] = {}
        self._num_written = self._bytes = 0
        self._finished: Path | None = None

    @property
    def _partial(self) -> Path:
        return self.root / _PARTIAL

    def begin(self, user: object) -> None:
        """Announces an update by one of those that share the folder; whoever comes a second time begins the next."""
        if not self._users or any(user is other for other in self._users):
            self._users.clear()
            self._discard()
        self._users.append(user)

    def write(self, index: int, tensors: NamedTensors) -> None:
        """Writes the bucket of that index, counted from 0, unless it is there already."""
        if index < self._num_written:
            return
        assert index == self._num_written, f"bucket {index} after {self._num_written} buckets"
        from safetensors.torch import save_file

        self._partial.mkdir(parents=True, exist_ok=True)
        name = f"model-{index + 1:05d}.safetensors"
        content: dict[str, Tensor] = {key: tensor.cpu() for key, tensor in tensors}
        save_file(content, self._partial / name, metadata={"format": "pt"})
        self._files |= dict.fromkeys(content, name)
        self._bytes += flat_size(tensors)
        self._num_written += 1

    def finish(self, version: int) -> Path:
        """Makes what was written the folder of a version, and returns it."""
        if self._finished is not None:
            return self._finished
        for name in _KEPT:
            if (self._model_folder / name).is_file():
                shutil.copyfile(self._model_folder / name, self._partial / name)
        index = {"metadata": {"total_size": self._bytes}, "weight_map": self._files}
        text = json.dumps(index, indent=2) + "\n"
        (self._partial / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        folder = self.root / f"{version:06d}"
        put_in_place(self._partial, folder)
        self._finished = folder
        return folder

    def prune(self) -> None:
        """Removes every version but the newest; call it when a version is loaded."""
        for folder in self.root.iterdir():
            if folder != self._finished and folder.name.isdigit():
                shutil.rmtree(folder, ignore_errors=True)

    def remove_weights(self) -> None:
        """Removes all weights; call it when nobody reads them. The next update begins anew.

        What stays of a version is its configuration: a server that loaded it names the folder as that of its model.
        """
        self._users.clear()
        self._discard()
        for file in self.root.glob("*/*"):
            if file.parent.name.isdigit() and file.name not in _KEPT:
                file.unlink()

    def _discard(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._files, self._num_written, self._bytes, self._finished = {}, 0, 0, None


class WeightsFolders:
    """A `WeightsFolder` for each type that servers keep their weights in, below `root`, while anybody uses them.

    Raises:
        WeightSyncError: `model_folder` has no configuration.
    """

    def __init__(self, root: Path, *, model_folder: Path) -> None:
        if not (model_folder / "config.json").is_file():
            raise WeightSyncError(f"'{model_folder}' has no config.json; pass the folder of the model that is trained")
        self._root, self._model_folder = root, model_folder
        self._folders: dict[torch.dtype, WeightsFolder] = {}
        self._users: set[object] = set()

    def join(self, user: object) -> None:
        """Keeps the weights at least until this user leaves. Joining twice is joining once."""
        self._users.add(user)

    def leave(self, user: object) -> None:
        """Ends a use, or does nothing if there is none; the last user's end removes the weights."""
        if user in self._users:
            self._users.remove(user)
            if not self._users:
                for folder in self._folders.values():
                    folder.remove_weights()

    def of(self, dtype: torch.dtype) -> WeightsFolder:
        """The folder for weights of this type."""
        if dtype not in self._folders:
            name = str(dtype).removeprefix("torch.")
            self._folders[dtype] = WeightsFolder(self._root / name, model_folder=self._model_folder)
        return self._folders[dtype]


class DiskReceiver(SGLangReceiver):
    """Has the server load a folder. It samples with the old weights until the folder is complete.

    The weights of the present version stay on the disk until every receiver that shares the folders is closed.

    Args:
        client: The server; it must see the folder under the same path.
        folders: Where versions are written; receivers of one process may share them.
        on_failure: See `SGLangReceiver`.
        dtype: See `SGLangReceiver`.
    """

    def __init__(
        self,
        client: SGLangClient,
        folders: WeightsFolders,
        *,
        on_failure: OnFailure | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(client, on_failure=on_failure, dtype=dtype)
        self._folders = folders
        self._num_buckets = 0
        self._may_be_reading = False
        folders.join(self)

    def close(self) -> None:
        """Gives the folders up. A server that did not say that it has read them, and is still there, keeps them."""
        super().close()
        if not (self._may_be_reading and self.client.is_healthy()):
            self._folders.leave(self)

    @property
    def _folder(self) -> WeightsFolder:
        return self._folders.of(self.served().dtype)

    def _open(self) -> None:
        self._num_buckets = 0
        self._folders.join(self)
        self._folder.begin(self)
        if self._released:
            self._pause()

    def _send(self, tensors: NamedTensors) -> None:
        self._folder.write(self._num_buckets, tensors)
        self._num_buckets += 1

    def _close(self, version: int) -> None:
        folder = self._folder.finish(version)
        if not self._released:
            self._pause()
        self._about_to_change()
        self._may_be_reading = True
        try:
            self.client.update_weights_from_disk(str(folder.resolve()))
        except ServerError as error:
            self._may_be_reading = isinstance(error, ServerUnreachableError)
            raise
        self._may_be_reading = False
        self._folder.prune()
