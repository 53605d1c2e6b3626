"""What a worker's call is made of, and so what rematerialisation and streaming are worth at most.

    python benchmarks/tasks.py [--rows 1900] [--bandwidth 200] [--latency 0.1] [--json]

Of a GCN layer with so many rows in a task it measures, with one thread: the forward task; the backward task, which computes the
layer again; and the bytes of both calls as JSON. Rematerialisation is compared with keeping the layer's product at the server: to
compute it again costs a forward task's products, to fetch it costs its bytes twice, on the way back of the forward call and on the
way there of the backward one. Streaming would compute half of the rows while the other half is on its way: at most it saves half
of the shorter of the two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from headrace.cluster.elastic import pack_task, run_task
from headrace.cluster.elastic.vertex import weight_arrays
from headrace.nn import GNN

WIDTHS = ((64, 32), (128, 128), (602, 128), (8415, 16))
BASE64 = 4 / 3


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Median of a few calls."""
    taken = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        function()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def measured(rows: int, wide: int, out: int, bandwidth: float, latency: float, repeats: int) -> dict[str, float | str]:
    """A row of the output."""
    model = GNN(wide, out, 4, layers=2, conv="gcn", dropout=0.5)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    layer = model.layers[0]
    assert isinstance(layer, nn.Module)
    arrays = weight_arrays(layer, weights, "layers.0.") | {"summed": torch.randn(rows, wide), "ids": torch.arange(rows)}
    options = {"model": json.dumps(model.config), "layer": 0, "training": True, "seed": 1, "inputs": False, "task": "0.f0.0"}
    backward = pack_task("backward", options, arrays | {"gradient": torch.randn(rows, out)})
    x, w = torch.randn(rows, wide), torch.randn(wide, out)
    product = seconds(lambda: x @ w, repeats)
    computed = seconds(lambda: run_task(backward), repeats)
    rate = bandwidth * 1e6 / 8
    moved = (len(backward) + len(run_task(backward))) * BASE64 / rate
    fetched = 2 * rows * out * 4 * BASE64 / rate
    return {
        "bench": "tasks",
        "case": f"{rows} rows, {wide} to {out} columns, {bandwidth:g} Mbit/s",
        "metric": "seconds of a backward call",
        "unit": "s",
        "ours": latency + moved + computed,
        "recomputed_s": product,
        "fetched_s": fetched,
        "computed_s": computed,
        "moved_s": moved,
        "streaming_saves_at_most": min(moved, computed) / 2 / (latency + moved + computed),
    }


def main() -> None:
    """Print a row for each width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1900)
    parser.add_argument("--bandwidth", type=float, default=200.0, help="Mbit/s")
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(chosen.rows, *widths, chosen.bandwidth, chosen.latency, chosen.repeats) for widths in WIDTHS]
    if chosen.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['case']}: computing again {1e3 * row['recomputed_s']:.2f} ms, fetching {1e3 * row['fetched_s']:.2f} ms; "
            f"a backward call moves for {1e3 * row['moved_s']:.0f} ms and computes for {1e3 * row['computed_s']:.1f} ms, "
            f"streaming saves at most {row['streaming_saves_at_most']:.1%} of it"
        )


if __name__ == "__main__":
    main()
