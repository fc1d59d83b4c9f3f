"""Whether servers hold the weights of a model folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from envgym.engines.sglang.checksums import ExpectedWeights
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.receiver import SGLangReceiver
from envgym.errors import ModelError, WeightSyncError

_HEAD = "lm_head.weight"
_log = logging.getLogger(__name__)


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
    compared = []
    for client in clients:
        try:
            served = SGLangReceiver(client).served()
            held = {name: shape for name, shape in shapes.items() if name != _HEAD or _HEAD in served.names}
            expected = ExpectedWeights(held, served.names, num_ranks=served.num_ranks, on_gpu=served.on_gpu)
        except WeightSyncError as error:
            _log.warning("The weights of %s were not compared with those in '%s': %s", client.url, folder, error)
        else:
            compared.append((client, held, served.dtype, expected))
    for file in files if compared else ():
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dictionary
                tensor = content.get_tensor(name)
                for _, held, dtype, expected in compared:
                    if name in held:  # a tied head may be written down all the same
                        expected.add(name, tensor.to(dtype))
    for client, _, _, expected in compared:
        try:
            expected.check_served(client.weight_checksums())
        except WeightSyncError as error:
            raise ModelError(
                f"{client.url} does not hold the weights in '{folder}': {error}; serve that folder, or play what the "
                "server holds (check_weights=False, --agent-arg check_weights=false)"
            ) from error
