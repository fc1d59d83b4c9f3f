"""Time of a verified weight sync to an SGLang server on the CPU, against copying the same bytes once.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_weight_sync.py [--rounds 7] [--hidden-size 512] [--dtype float32]

All variants take turns within each round, so that their ratios come from one run however busy the machine is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from envgym.engines import SGLangServer
from envgym.engines.embedded.tiny_model import create_model
from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.transports import make_transport
from envgym.engines.sglang.weights import ServerWeights, sync_servers
from envgym.model_folder import load_model

WAYS = ("tensors", "distributed", "disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--bucket-mib", type=int, default=256, help="size of a bucket before it is cast")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = create_model(
            Path(scratch) / "model", hidden_size=options.hidden_size, num_layers=options.num_layers, num_heads=8
        )
        with SGLangServer(folder, "cpu", dtype=options.dtype, max_total_tokens=4096) as server:
            measure(folder, Path(scratch), SGLangClient(server.url), options)


def measure(folder: Path, scratch: Path, client: SGLangClient, options: argparse.Namespace) -> None:
    model = load_model(folder)
    dtype = getattr(torch, options.dtype)
    target = [torch.empty_like(parameter, dtype=dtype) for parameter in model.parameters()]
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in target)
    version = 0

    @torch.no_grad()
    def copy() -> None:
        for to, parameter in zip(target, model.parameters(), strict=True):
            to.copy_(parameter)

    def pusher(way: str) -> Callable[[], None]:
        transport = make_transport(way, folder=scratch / way, model_folder=folder)  # type: ignore[arg-type]
        server = ServerWeights(client, transport)

        def push() -> None:
            nonlocal version
            version += 1
            sync_servers(model, [server], version=version, max_bytes=options.bucket_mib * 2**20)

        return push

    variants = {"one copy": copy} | {way: pusher(way) for way in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(options.rounds + 1):
        for name, run in variants.items():
            started = time.perf_counter()
            run()
            if round_number:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    print(f"{nbytes / 2**20:.1f} MiB of {options.dtype}, {len(target)} parameters, median of {options.rounds} rounds\n")
    print("| way | ms | MiB/s | times one copy | times disk |")
    print("|---|---|---|---|---|")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        rate = nbytes / 2**20 / median
        against = (median / medians["one copy"], median / medians["disk"])
        print(f"| {name} | {1e3 * median:.1f} | {rate:,.0f} | {against[0]:.2f} | {against[1]:.2f} |")


if __name__ == "__main__":
    main()
