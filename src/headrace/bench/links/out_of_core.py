"""Link prediction with rows on disk, by order of partitions: seconds, loads and bytes of an epoch, and how busy the disk was.

The limit of an epoch is its bytes at the rate at which one thread reads and another writes large files, as training does.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headrace.bench.measure import Epochs, Row
from headrace.bench.setting import Setting, threads_of
from headrace.graph import Dataset, Graph
from headrace.pipeline import orders
from headrace.plan.links.probe import disk_rate
from headrace.train import LinkOptions, link
from headrace.train.links.memory import slot_bytes

PARTITIONS, BUFFER, DIM, RELATIONS = 16, 4, 64, 8
NODES, EDGES = 4_000_000, 3_000_000  # at scale 1
ORDERS = ("beta", "comet", "hilbert_symmetric", "best")
_EPOCHS = 2  # the first fills the buffer; the last is reported
_EXACT = LinkOptions().staleness  # the default: no batch runs ahead of an update


def run(setting: Setting) -> list[Row]:
    """Each order on disk beside the same one with rows in memory; first checked, on a small graph, to give the same loss."""
    data = random_graph(int(NODES * setting.scale), int(EDGES * setting.scale))
    rows: list[Row] = []
    with threads_of(setting.threads), tempfile.TemporaryDirectory() as folder:
        setting.progress("measuring the disk")
        rate = disk_rate(Path(folder))
        _check_equal(Path(folder), setting)
        for order in ORDERS:
            setting.progress(f"training by {order}, rows in memory and on disk")
            host = _last_epoch(data, _options(order, "host", setting), Path(folder) / f"{order}-host")
            disk = _last_epoch(data, _options(order, "disk", setting), Path(folder) / order)
            rows += _rows(order, host, disk, data.num_nodes, rate)
    return rows


def _check_equal(folder: Path, setting: Setting) -> None:
    """With no batch ahead, rows on disk give the loss of rows in memory, to the bit, or nothing is timed."""
    data = random_graph(2000, 8000)
    for order in ORDERS:
        options = [replace(_options(order, storage, setting), staleness=_EXACT) for storage in ("host", "disk")]
        host, disk = (_last_epoch(data, o, folder / f"small-{order}-{o.storage}") for o in options)
        if host["loss"] != disk["loss"]:
            raise RuntimeError(f"by {order}, the loss is {host['loss']} in memory and {disk['loss']} on disk: nothing is timed")


def _rows(order: str, host: dict[str, Any], disk: dict[str, Any], nodes: int, rate: float) -> list[Row]:
    use, moved = disk["disk"], disk["disk"]["bytes_read"] + disk["disk"]["bytes_written"]
    options = LinkOptions(dim=DIM, partitions=PARTITIONS, buffer=BUFFER, order=order)  # type: ignore[arg-type]
    loads, size = orders.ORDERS[order](PARTITIONS, BUFFER).swaps, slot_bytes(options, nodes=nodes, state=1)
    case = f"{order}, {BUFFER} of {PARTITIONS} partitions of {size / 2**20:.1f} MiB"
    formula, fewest = {"2 L S / p": 2 * loads * size / 1e6}, orders.fewest_swaps(PARTITIONS, BUFFER)
    same = {"rows in memory, same order": host["epoch_seconds"]}
    return [
        Row(case, "epoch", "s", disk["epoch_seconds"], same, moved / rate),
        Row(case, "loads of an epoch", "loads", use["loads"], {"order": loads}, fewest),
        Row(case, "read and written", "MB", moved / 1e6, formula, 2 * fewest * size / 1e6),
        Row(case, "disk busy", "of the epoch", use["busy"]),
        Row(case, "waited for partitions", "s", use["stall_seconds"]),
    ]


def random_graph(nodes: int, edges: int) -> Dataset:
    """Edges between any two nodes: no order has an easier time than another."""
    triples, generator = torch.empty(edges, 3, dtype=torch.int32), torch.Generator().manual_seed(0)
    for column, count in enumerate((nodes, RELATIONS, nodes)):
        triples[:, column].random_(0, count, generator=generator)
    return Dataset(Graph.from_edges([], [], nodes), extra={"train": triples}, info={"num_relations": RELATIONS})


def _options(order: str, storage: str, setting: Setting) -> LinkOptions:
    return LinkOptions(
        decoder="distmult",
        dim=DIM,
        epochs=_EPOCHS,
        batch_size=1000,
        negatives=100,
        staleness=_EXACT + 7,
        storage=storage,  # type: ignore[arg-type]
        partitions=PARTITIONS,
        buffer=BUFFER,
        order=order,  # type: ignore[arg-type]
        checkpoint_seconds=1e9,
        threads=setting.threads,
    )


def _last_epoch(data: Dataset, options: LinkOptions, out: Path) -> dict[str, Any]:
    seen = Epochs()
    link(data, options, out=out, watcher=seen)
    return seen.facts[-1]
