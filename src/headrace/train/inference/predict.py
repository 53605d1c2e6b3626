"""Predictions of a finished run, as a table."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from headrace._files import replaced
from headrace.graph import Dataset
from headrace.graph.typed import node_types, nodes_of_type
from headrace.train.checkpoint import CheckpointError
from headrace.train.inference.layerwise.infer import infer
from headrace.train.nodes.features import Scaling, scaled
from headrace.train.nodes.node import make_model
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.own_rows import with_rows_of
from headrace.train.options import from_plain
from headrace.train.run import Run

_ROWS = 1 << 18  # of a row group


def load_model(path: str | os.PathLike[str], data: Dataset) -> tuple[nn.Module, NodeOptions]:
    """The best model of the run at `path` (of several repeats, the first), for data of the shape it was trained on."""
    run = Run(path)
    header = run.header
    if header["task"] != "node":
        asked = ": ask it by headrace neighbors, or write its rows by headrace export" if header["task"] == "link" else ""
        raise ValueError(f"{path} is a run of {header['task']!r}, not of node classification{asked}")
    if not run.has_checkpoint("best") and (run.path / "repeat-0").is_dir():
        run = Run(run.path / "repeat-0")
    if not run.has_checkpoint("best"):
        raise ValueError(f"{path} has no best model yet: let it finish (resume it), then predict")
    trained = header["dataset"]
    if data.num_features != trained["features"]:
        raise ValueError(f"the model takes {trained['features']} features, the dataset has {data.num_features}")
    if data.x is None and data.num_nodes != trained["nodes"]:
        raise ValueError(f"the model has learned rows of {trained['nodes']:,} nodes, and the dataset has {data.num_nodes:,}")
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
    """Write what the run at `path` predicts for every node to a file of the kind that its name says; returns how many.

    | name | content |
    | --- | --- |
    | `.parquet` | node, id (where the dataset has a map), label, class (where classes have names), probability |
    | `.csv` | the same; several labels of a node are joined by `;` |
    | `.npy` | labels `[N]` (of several labels `[N, classes]`, true or false) |

    Of several labels, those with a probability above a half are given. `probabilities` adds those of all classes: a list in
    Parquet, a column for each class in CSV; `.npy` then holds them alone, float32 `[N, classes]`. Where nodes have types, those of
    the type that has labels are predicted, and no others.
    """
    writers = {".parquet": _write_parquet, ".csv": _write_csv}
    if out.suffix not in (*writers, ".npy"):
        raise ValueError(f"{out} has no name that says what to write: end it with .parquet, .csv or .npy")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out} cannot be written: there is no directory {out.parent}")
    model, _ = load_model(path, data)
    header = Run(path).header
    multi_label = bool(header["dataset"].get("multi_label"))
    shown = with_rows_of(model, data) if data.x is None else scaled(data, Scaling.of_run(header))
    rows = infer(model, shown).float()
    if not len(rows):
        raise ValueError("the dataset has no nodes")
    if lost := int((~rows.isfinite()).any(dim=1).sum()):
        raise ValueError(f"the outputs of {lost:,} of {len(rows):,} nodes are not finite: look for huge or missing features")
    chances = rows.sigmoid() if multi_label else rows.softmax(dim=1)
    target = data.info.get("target")
    nodes = nodes_of_type(data, target) if isinstance(target, str) and target in node_types(data) else None
    chances = chances if nodes is None else chances[nodes]
    with replaced(out) as aside:
        if out.suffix == ".npy":
            kept = chances if probabilities else chances > 0.5 if multi_label else chances.argmax(dim=1)
            with open(aside, "wb") as file:
                np.save(file, kept.numpy())
        else:
            names: Any = header["dataset"].get("class_names") or data.info.get("class_names")
            writers[out.suffix](aside, _tables(data, nodes, chances, names, multi_label=multi_label, probabilities=probabilities))
    return len(chances)


def _tables(
    data: Dataset, nodes: Tensor | None, chances: Tensor, names: Sequence[str] | None, *, multi_label: bool, probabilities: bool
) -> Iterator[tuple[Any, Sequence[str]]]:
    """The table, piece by piece, with the names of classes for columns of their probabilities."""
    ids = None if data.id_map is None else pq.ParquetFile(data.id_map)
    original = _original_ids(ids, data.num_nodes)
    classes = names or [str(number) for number in range(chances.shape[1])]
    for begin in range(0, len(chances), _ROWS):
        part = chances[begin : begin + _ROWS]
        shown = range(begin, begin + len(part)) if nodes is None else nodes[begin : begin + len(part)].numpy()
        columns: dict[str, Any] = {"node": pa.array(shown, pa.int64())}
        if original is not None:
            columns["id"] = original.take(columns["node"]).combine_chunks()
        columns |= _labels(part, names, multi_label)
        if probabilities:
            columns["probabilities"] = pa.FixedSizeListArray.from_arrays(pa.array(part.flatten().numpy()), part.shape[1])
        yield pa.table(columns), classes


def _labels(chances: Tensor, names: Sequence[str] | None, multi_label: bool) -> dict[str, Any]:
    if not multi_label:
        best, label = chances.max(dim=1)
        named = {} if names is None else {"class": pa.array(names).take(pa.array(label.numpy()))}
        return {"label": pa.array(label.numpy()), **named, "probability": pa.array(best.numpy())}
    marked = chances > 0.5
    offsets = pa.array(torch.cat([torch.zeros(1, dtype=torch.int64), marked.sum(dim=1).cumsum(0)]).int().numpy())
    labels = pa.array(marked.nonzero()[:, 1].numpy())
    named = {} if names is None else {"class": pa.ListArray.from_arrays(offsets, pa.array(names).take(labels))}
    return {"label": pa.ListArray.from_arrays(offsets, labels), **named}


def _write_parquet(path: Path, tables: Iterator[tuple[Any, Sequence[str]]]) -> None:
    writer = None
    for table, _ in tables:
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _write_csv(path: Path, tables: Iterator[tuple[Any, Sequence[str]]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, (table, classes) in enumerate(tables):
            lists = [name for name in ("label", "class") if name in table.column_names and pa.types.is_list(table[name].type)]
            plain = {name: table[name].to_pylist() for name in table.column_names if name != "probabilities"}
            plain |= {name: [";".join(map(str, labels)) for labels in plain[name]] for name in lists}
            several = table["probabilities"].to_pylist() if "probabilities" in table.column_names else None
            if number == 0:
                writer.writerow([*plain, *(f"probability of {name}" for name in (classes if several else ()))])
            for place, row in enumerate(zip(*plain.values(), strict=True)):
                writer.writerow([*row, *(several[place] if several else ())])


def _original_ids(file: Any, nodes: int) -> Any:
    """The ids an import began with, in the order of the nodes."""
    if file is None:
        return None
    table = file.read(columns=["node", "id"]).sort_by("node")
    if table.num_rows != nodes:
        raise ValueError(f"the id map has {table.num_rows} rows for {nodes} nodes")
    return table.column("id")
