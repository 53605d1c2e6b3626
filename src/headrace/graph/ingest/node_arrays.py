"""The arrays of all nodes, type by type: features, labels, splits and types, written front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from headrace.graph.hetero import EdgeType
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.nodes import NodeRows, write_splits
from headrace.graph.ingest.outside.scratch import Array, Scratch
from headrace.graph.saved.io import DatasetWriter
from headrace.graph.typed import about_types, feature_columns

_CHUNK = 1 << 16


def write_nodes(
    writer: DatasetWriter,
    ids: Mapping[str, IdMap],
    tables: Mapping[str, NodeRows],
    folder: Scratch,
    budget: Budget,
    threads: int,
    progress: Callable[[int], None],
    edge_types: Sequence[EdgeType] = (),
) -> None:
    """Write x, y and splits in the order of the nodes; with several types, `extra["node_type"]` and what they are, too."""
    total = sum(of.num_nodes for of in ids.values())
    widths = {kind: tables[kind].width if kind in tables else 0 for kind in ids}
    columns = feature_columns(widths)
    width = sum(widths.values()) if len(ids) == 1 else max((part.stop for part in columns.values()), default=0)
    labeled = next((rows for rows in tables.values() if rows.has_labels), None)
    labels, classes = (np.array([-1]), []) if labeled is None else labeled.labels()
    x = writer.array("x", torch.float32, (total, width)) if width else None
    y = None if labeled is None else writer.array("y", torch.int64, (total,))
    split = folder.spool("split")
    done = 0
    for kind, of in ids.items():
        rows = tables[kind].ranges(of, budget, threads) if kind in tables else _without_table(of.num_nodes)
        for codes, features in rows:
            if x is not None:
                x.append(_placed(features, len(codes), width, columns[kind]))
            if y is not None:
                own = labeled is tables.get(kind)
                y.append(labels[codes[:, 0]] if own else np.full(len(codes), -1, np.int64))
            split.append(codes[:, 1].astype(np.int8))
            done += len(codes)
            progress(done)
    if classes:
        writer.info |= {"num_classes": len(classes), "class_names": classes}
    if any(rows.has_splits for rows in tables.values()):
        write_splits(writer, lambda: (split.read(number) for number in range(len(split))))
    if edge_types:
        featured = [kind for kind, count in widths.items() if count]
        target = next((kind for kind, rows in tables.items() if rows is labeled), None)
        writer.info |= about_types(list(ids), edge_types, columns, featured=featured, target=target)
        kinds = writer.array("extra_node_type", torch.int16, (total,))
        for number, of in enumerate(ids.values()):
            for begin in range(0, of.num_nodes, _CHUNK):
                kinds.append(np.full(min(_CHUNK, of.num_nodes - begin), number, np.int16))


def _without_table(count: int) -> Iterator[tuple[Array, Array | None]]:
    for begin in range(0, count, _CHUNK):
        yield np.full((min(_CHUNK, count - begin), 2), -1, np.int32), None


def _placed(features: Array | None, count: int, width: int, columns: slice) -> Array:
    if features is not None and features.shape[1] == width:
        return features
    placed = np.zeros((count, width), np.float32)
    placed[:, columns] = 1 if features is None else features
    return placed
