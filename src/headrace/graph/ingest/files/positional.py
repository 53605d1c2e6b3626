"""Node rows given by position as .npy files: row i is node i's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.graph.ingest.files.tables import npy_header, require_file
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.nodes import write_splits
from headrace.graph.ingest.options import IngestOptions
from headrace.graph.ingest.outside.scratch import Array
from headrace.graph.ingest.problems import IngestError
from headrace.graph.saved.io import DatasetWriter

_NAMES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "": -1, "none": -1}


class PositionalRows:
    """The .npy files of an import, checked against each other before anything long begins."""

    def __init__(self, options: IngestOptions) -> None:
        files = {name: getattr(options, name) for name in ("features", "labels", "split")}
        self._files: dict[str, Path] = {name: path for name, path in files.items() if path is not None}
        self.num_nodes = options.num_nodes
        source = "num_nodes"
        for name, path in self._files.items():
            require_file(path, name)
            shape, fortran, dtype, _ = npy_header(path)
            if len(shape) not in ((2,) if name == "features" else (1,) if name == "split" else (1, 2)):
                raise IngestError(
                    f"{name}: {path} has shape {shape}: it needs one {'row' if name == 'features' else 'entry'} per node"
                )
            if fortran and len(shape) == 2:
                raise IngestError(f"{name}: {path} is stored by column: save it with numpy.ascontiguousarray")
            if dtype.kind not in {"features": "fiub", "labels": "iub", "split": "iuUS"}[name]:
                raise IngestError(f"{name}: {path} holds {dtype}, which cannot be {name}")
            if self.num_nodes is not None and shape[0] != self.num_nodes:
                raise IngestError(f"{name}: {path} has {shape[0]} rows, but {source} says {self.num_nodes} nodes")
            self.num_nodes, source = shape[0], f"{name} ({path})"

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self._files.values())

    def write(self, writer: DatasetWriter, budget: Budget) -> None:
        if path := self._files.get("features"):
            shape, *_ = npy_header(path)
            x = writer.array("x", torch.float32, shape)
            for rows in _pieces(path, budget):
                x.append(rows.astype(np.float32))
        if path := self._files.get("labels"):
            shape, _, dtype, _ = npy_header(path)
            kind = np.int64 if len(shape) == 1 else bool if dtype.kind == "b" else np.float32
            y = writer.array("y", torch.from_numpy(np.empty(0, kind)).dtype, shape)
            for rows in _pieces(path, budget):
                y.append(rows.astype(kind))
        if path := self._files.get("split"):
            named = path
            write_splits(writer, lambda: (_codes(named, rows) for rows in _pieces(named, budget)))


def _pieces(path: Path, budget: Budget) -> Iterator[Array]:
    shape, _, dtype, offset = npy_header(path)
    row = int(np.prod(shape[1:], dtype=np.int64))
    at_once = budget.items(max(1, row) * (dtype.itemsize + 12))
    for start in range(0, shape[0], at_once):
        count = min(at_once, shape[0] - start) * row
        values = np.fromfile(path, dtype, count, offset=offset + start * row * dtype.itemsize)
        if len(values) < count:
            raise IngestError(f"{path} ends early: its header promises {shape[0]} rows")
        yield values.reshape(-1, *shape[1:])


def _codes(path: Path, values: np.ndarray[Any, Any]) -> Array:
    if values.dtype.kind in "iu":
        codes = values.astype(np.int64)
    else:
        names, at = np.unique(values, return_inverse=True)
        texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names]
        codes = np.array([_NAMES.get(text.strip().lower(), 9) for text in texts] or [-1], np.int64)[at]
    if len(codes) and (codes.min() < -1 or codes.max() > 2):
        raise IngestError(f"split: {path} must say train, val or test, or 0, 1 or 2, or -1 for none")
    return codes.astype(np.int8)
