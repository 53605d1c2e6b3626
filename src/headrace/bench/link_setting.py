"""What `headrace bench gpu-link` trains, and where: by default a graph of the shape of Freebase86m, as Marius published it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _of(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": f"gpu-link: {text}"})


@dataclass(frozen=True)
class LinkBench:
    """Options of `headrace bench gpu-link` alone."""

    nodes: int = _of(86_054_151, "nodes of the generated knowledge graph")
    edges: int = _of(338_586_276, "its edges, of which nine in ten are trained on")
    relations: int = _of(14_824, "its relations")
    decoder: Literal["dot", "distmult", "complex", "transe", "rotate"] = _of("complex", "how an edge is scored")
    dim: int = _of(100, "floats per node")
    optimizer: Literal["row_adagrad", "adagrad"] = _of("row_adagrad", "one float of state a row, or dim of them")
    batch_size: int = _of(50_000, "edges per step")
    negatives: int = _of(1000, "negatives of a chunk")
    chunks: int = _of(10, "chunks of a batch")
    precision: Literal["fp32", "tf32"] = _of("fp32", "type that products are computed in")
    staleness: int = _of(8, "batches in flight")
    tiers: tuple[str, ...] = _of(
        ("device", "host", "disk"), "where rows live: device, host, disk (buffer on the device) or disk-host (buffer on the host)"
    )
    row_type: Literal["auto", "fp32", "bf16"] = _of("auto", "type of rows (auto: fp32, on disk bf16 if only that fits twice)")
    partitions: int = _of(16, "partitions, for tiers on disk")
    buffer: int = _of(8, "partitions that are resident, for tiers on disk")
    order: Literal["beta", "comet", "best"] = _of("best", "order of partitions, for tiers on disk")
    epochs: int = _of(1, "epochs, of which the last is reported")
    seconds_limit: float = _of(0.0, "cut an epoch after so many seconds and tell its time by the share of edges done (0: never)")
    ranked: int = _of(2000, "test edges ranked among 1000 sampled nodes after training, where rows are not on disk")
    folder: str = _of("", "where tiers on disk write (default: the system's folder for temporary files)")
    device: str = _of("cuda", "cuda, or cpu to try it out")
