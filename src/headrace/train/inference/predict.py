"""Predictions of a finished run, as a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from headrace._files import replaced
from headrace.graph import Dataset
from headrace.nn import GNN
from headrace.train.checkpoint import CheckpointError
from headrace.train.inference.infer import infer
from headrace.train.nodes.node import make_model, with_features
from headrace.train.nodes.options import NodeOptions
from headrace.train.options import from_plain
from headrace.train.run import Run

_ROWS = 1 << 18  # of a row group


def load_model(path: str | os.PathLike[str], data: Dataset) -> tuple[GNN, NodeOptions]:
    """The best model of the run at `path` (of several repeats, the first), for data of the shape it was trained on."""
    run = Run(path)
    header = run.header
    if header["task"] != "node":
        raise ValueError(f"{path} is a run of {header['task']!r}, not of node classification")
    if not run.has_checkpoint("best") and (run.path / "repeat-0").is_dir():
        run = Run(run.path / "repeat-0")
    if not run.has_checkpoint("best"):
        raise ValueError(f"{path} has no best model yet: let it finish (resume it), then predict")
    trained = header["dataset"]
    if data.num_features != trained["features"]:
        raise ValueError(f"the model takes {trained['features']} features, the dataset has {data.num_features}")
    options = from_plain(NodeOptions, header["options"])
    like = Dataset(data.graph, x=data.x, info={"num_classes": trained["classes"]})
    model = make_model(like, options)
    try:
        model.load_state_dict(run.load_checkpoint("best")["model"])
    except RuntimeError as error:
        if isinstance(error, CheckpointError):
            raise
        raise ValueError(f"{path} trained a model of its own, not the {options.model} that its options describe") from None
    return model, options


def write_predictions(path: str | os.PathLike[str], data: Dataset, out: Path, *, probabilities: bool = False) -> int:
    """Write node, id (where the dataset has a map), label and probability of every node to a Parquet file; returns their number.

    Of several labels, `label` lists those with a probability above a half.
    """
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} cannot be written: there is no directory {out.parent}")
    model, options = load_model(path, data)
    multi_label = bool(Run(path).header["dataset"].get("multi_label"))
    rows = infer(model, with_features(data, options)).float()
    if lost := int((~rows.isfinite()).any(dim=1).sum()):
        raise ValueError(f"the outputs of {lost:,} of {len(rows):,} nodes are not finite: look for huge or missing features")
    chances = rows.sigmoid() if multi_label else rows.softmax(dim=1)
    ids = None if data.id_map is None else pq.ParquetFile(data.id_map)
    with replaced(out) as aside:
        writer = None
        original = _original_ids(ids, data.num_nodes)
        for begin in range(0, len(chances), _ROWS):
            part = chances[begin : begin + _ROWS]
            columns: dict[str, Any] = {"node": pa.array(range(begin, begin + len(part)), pa.int64())}
            if original is not None:
                columns["id"] = original.slice(begin, len(part)).combine_chunks()
            columns |= _labels(part, multi_label)
            if probabilities:
                columns["probabilities"] = pa.FixedSizeListArray.from_arrays(pa.array(part.flatten().numpy()), part.shape[1])
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(aside, table.schema)
            writer.write_table(table)
        if writer is None:
            raise ValueError("the dataset has no nodes")
        writer.close()
    return len(chances)


def _labels(chances: Tensor, multi_label: bool) -> dict[str, Any]:
    if not multi_label:
        best, label = chances.max(dim=1)
        return {"label": pa.array(label.numpy()), "probability": pa.array(best.numpy())}
    marked = chances > 0.5
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), marked.sum(dim=1).cumsum(0)])
    labels = marked.nonzero()[:, 1]
    return {"label": pa.ListArray.from_arrays(pa.array(offsets.int().numpy()), pa.array(labels.numpy()))}


def _original_ids(file: Any, nodes: int) -> Any:
    """The ids an import began with, in the order of the nodes."""
    if file is None:
        return None
    table = file.read(columns=["node", "id"]).sort_by("node")
    if table.num_rows != nodes:
        raise ValueError(f"the id map has {table.num_rows} rows for {nodes} nodes")
    return table.column("id")
