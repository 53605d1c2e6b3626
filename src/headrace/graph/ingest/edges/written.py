"""What a dataset holds of edges beside the graph: triples, their times, features, and what relations are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from headrace.graph.ingest.edges.spooled import Edges
from headrace.graph.ingest.inputs import Inputs
from headrace.graph.saved.io import DatasetWriter

_SPLITS = ("train", "val", "test")


def write_beside(writer: DatasetWriter, edges: Edges, inputs: Inputs, *, num_nodes: int, held_out: bool) -> None:
    """Write `extra["triples"]` (`held_out`: "train", "val" and "test") with times, and `extra["edge_features"]`."""
    if inputs.has_relations:
        kind = np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64
        for split, name in enumerate(_SPLITS if held_out else ("triples",)):
            count = edges.count(split)
            triples = writer.array(f"extra_{name}", _torch(kind), (count, 3))
            times = None
            if inputs.time is not None:
                times = writer.array(f"extra_{name}_time", torch.float64 if inputs.time == "real" else torch.int64, (count,))
            for piece in edges.pieces(split):
                triples.append(np.stack([piece[column].astype(kind) for column in ("src", "relation", "dst")], axis=1))
                if times is not None:
                    times.append(piece["time"])
    if inputs.num_features:
        features = writer.array("extra_edge_features", torch.float32, (edges.count(), inputs.num_features))
        for piece in edges.pieces():
            features.append(piece["features"])


def write_names(writer: DatasetWriter, name: str, pieces: Iterator[Any] | Sequence[Any], kind: Any) -> int:
    """What numbers from 0 on are called, as a Parquet file to join with; returns how many there are."""
    schema = pa.schema([("node", pa.int64()), ("id", kind)])
    first = 0
    with pq.ParquetWriter(writer.side_file(name), schema) as file:
        for keys in pieces:
            if len(keys):
                file.write_table(pa.table([pa.array(np.arange(first, first + len(keys))), keys], schema=schema))
                first += len(keys)
    return first


def _torch(kind: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, kind)).dtype
