"""Whether a server holds the weights of a model folder."""

from __future__ import annotations

import logging
from pathlib import Path

from envgym.errors import ModelError, WeightSyncError
from envgym.policies.sglang_client import SGLangClient
from envgym.weight_sync.checksums import ExpectedWeights
from envgym.weight_sync.sglang_receiver import SGLangReceiver

_HEAD = "lm_head.weight"
_log = logging.getLogger(__name__)


def check_served_weights(client: SGLangClient, folder: Path) -> None:
    """Compares the checksum of every parameter of a server with the weights in a folder.

    Reads the whole folder once, a parameter at a time. A server whose parameters cannot be told from here, for example
    one that quantises them, is not compared, and a warning says so.

    Args:
        client: The server.
        folder: A Hugging Face-format folder with safetensors weights.

    Raises:
        ModelError: The server holds other weights, for example those that a training run has given it.
        ServerError: It does not answer.
    """
    from safetensors import safe_open

    try:
        served = SGLangReceiver(client).served()
        places: dict[str, tuple[Path, tuple[int, ...]]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as content:
                places |= {name: (file, tuple(content.get_slice(name).get_shape())) for name in content.keys()}  # noqa: SIM118
        if _HEAD not in served.names:
            places.pop(_HEAD, None)  # tied, and yet written down
        shapes = {name: shape for name, (_, shape) in places.items()}
        expected = ExpectedWeights(shapes, served.names, num_ranks=served.num_ranks, on_gpu=served.on_gpu)
    except WeightSyncError as error:
        _log.warning("The weights of %s were not compared with those in '%s': %s", client.url, folder, error)
        return
    for file in sorted({file for file, _ in places.values()}):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dictionary
                if name in places:
                    expected.add(name, content.get_tensor(name).to(served.dtype))
    try:
        expected.check_served(client.weight_checksums())
    except WeightSyncError as error:
        raise ModelError(
            f"{client.url} does not hold the weights in '{folder}': {error}; serve that folder, or play what the "
            "server holds (check_weights=False, --agent-arg check_weights=false)"
        ) from error
