"""Real datasets by name, from a folder of `.npz` files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.saved.kinds import PART, PARTITION, kind_of

_NAMES = {"nodes": "entities.txt.gz", "relations": "relations.txt.gz"}

Arrays = dict[str, np.ndarray[Any, Any]]


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """The dataset `name` from `root`; or from the folder that the environment variable HEADRACE_DATA names; or from the nearest
    folder `data` or `shared/data`, here or above, that has it.

    A dataset is `root/name/name.npz`. What its arrays are called says what it is:

    | arrays | graph | rows |
    | --- | --- | --- |
    | `edge_index` (both directions) or `edge_index_half` (each edge once), `y`, masks | as given | x, y, splits |
    | `train`, `valid`, `test` triples | the training triples, head to tail | `extra`: the triples |
    | `src`, `dst`, `ts` | all events, with their times | `extra`: the list of events (`EventStream.of`) |
    | `train`, `test` pairs (user, item) | users and then items, both directions | `extra`: the pairs |
    | `snapshot_ptr`, `edge_index` | all snapshots together | `extra`: snapshots and signals |
    | `a_b` pairs with `num_a`, `num_b` | all kinds of nodes, one after the other, both directions | `extra`: the pairs |

    Names of nodes and relations are in `entities.txt.gz` and `relations.txt.gz` beside it, where there are any, a line for each.
    Where there are several official splits, `splits` holds the first and `extra` all of them.

    Names that begin with `ogbn-` or `tgbl-` are read from what the packages `ogb` and `py-tgb` have on disk (in `root`, or where
    they put it); an error says the line that fetches them. `towns`, `facts`, `visits` and `library` are made here, and are
    everywhere (`headrace.graph.known.examples`).
    """
    if (kind := kind_of(Path(name))) is PARTITION or kind is PART:
        raise ValueError(f"{name} is a {kind.noun}, not the name of a dataset: {kind.use.format(path=name)}")
    if isinstance(name, Path) or len(Path(name).parts) > 1:
        raise ValueError(f"{str(name)!r} is a path, and load takes the name of a dataset: headrace.open reads what was saved there")
    folder = root if root is not None else os.environ.get("HEADRACE_DATA") or _nearest(name)
    if folder is None or not (Path(folder) / name / f"{name}.npz").is_file():
        packaged = _packaged(name, folder, has_root=root is not None)
        if packaged is not None:
            return packaged
    if folder is None:
        raise ValueError(f"there is no {name!r} in a folder `data` here or above: set HEADRACE_DATA to the folder, or pass root")
    folder = Path(folder)
    file = folder / name / f"{name}.npz"
    if not file.is_file():
        available = sorted(f.parent.name for f in folder.glob("*/*.npz")) if folder.is_dir() else []
        known = f": it has {', '.join(available)}" if available else ""
        raise FileNotFoundError(f"there is no dataset {name!r} in {folder}{known}")
    try:
        with np.load(file) as archive:
            arrays: Arrays = {key: archive[key] for key in archive.files}
    except OSError:
        raise
    except Exception as error:  # numpy has no one error for a file it cannot read
        raise ValueError(f"{file} is damaged: {error}") from None
    data = _reader_of(arrays)(arrays)
    data.info["name"] = name
    for what, text in _NAMES.items():
        if (folder / name / text).is_file():
            data.names[what] = folder / name / text
    return data


def _packaged(name: str, folder: str | os.PathLike[str] | None, *, has_root: bool) -> Dataset | None:
    """A dataset of `ogb` or `py-tgb` by the folder's own layout or where these packages put it; or one that is made here."""
    from headrace.graph.known.examples import EXAMPLES, load_example
    from headrace.graph.known.packages import load_packaged

    has_it = folder is not None and (Path(folder) / name.replace("-", "_")).is_dir()
    data = load_packaged(name, Path(folder) if folder is not None and (has_root or has_it) else None)
    if data is not None or has_root or name not in EXAMPLES:
        return data
    return replace(example := load_example(name), info=example.info | {"name": name})


def _nearest(name: str) -> Path | None:
    current = Path.cwd()
    folders = [above / data for above in (current, *current.parents) for data in ("data", "shared/data")]
    return next((folder for folder in folders if (folder / name / f"{name}.npz").is_file()), None)


def _reader_of(arrays: Arrays) -> Callable[[Arrays], Dataset]:
    if "snapshot_ptr" in arrays or ("signal" in arrays and "edge_index" in arrays):
        return _snapshots
    if "edge_index" in arrays or "edge_index_half" in arrays:
        return _nodes
    if "train" in arrays and arrays["train"].shape[1] >= 3:
        return _knowledge
    if "train" in arrays:
        return _pairs
    if "src" in arrays and "dst" in arrays:
        return _events
    if "adj" in arrays:
        return _dense
    if _relations(arrays):
        return _typed
    raise ValueError(f"these arrays are no dataset that is known: {', '.join(arrays)}")


def _nodes(arrays: Arrays) -> Dataset:
    half = "edge_index_half" in arrays
    src, dst = arrays.pop("edge_index_half" if half else "edge_index")
    x = _features(arrays)
    y = _labels(arrays)
    rows = next((len(a) for a in (x, y) if a is not None), None)
    nodes = int(arrays.pop("num_nodes")) if "num_nodes" in arrays else rows
    graph = Graph.from_edges(src, dst, nodes, undirected=half)
    splits: dict[str, Tensor] = {}
    extra: dict[str, Tensor] = {}
    for split in ("train", "val", "test"):
        if f"{split}_mask" in arrays:
            splits[split] = torch.from_numpy(arrays.pop(f"{split}_mask").astype(bool))
        elif f"{split}_masks" in arrays:
            masks = torch.from_numpy(arrays.pop(f"{split}_masks").astype(bool))
            splits[split], extra[f"{split}_masks"] = masks[0], masks
    return Dataset(graph, x=x, y=y, splits=splits, extra=extra | _rest(arrays), info=_info(arrays))


def _knowledge(arrays: Arrays) -> Dataset:
    head, tail = arrays["train"][:, 0], arrays["train"][:, 2]
    graph = Graph.from_edges(head, tail, int(arrays["num_entities"]), edge_id=True)
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays))


def _pairs(arrays: Arrays) -> Dataset:
    user, item = arrays["train"].T
    users = int(arrays.get("num_users", max(arrays["train"][:, 0].max(), arrays["test"][:, 0].max()) + 1))
    items = int(arrays.get("num_items", max(arrays["train"][:, 1].max(), arrays["test"][:, 1].max()) + 1))
    graph = Graph.from_edges(user, item.astype(np.int64) + users, users + items, undirected=True, edge_id=True)
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays) | {"num_users": users, "num_items": items})


def _events(arrays: Arrays) -> Dataset:
    nodes = int(arrays["num_nodes"]) if "num_nodes" in arrays else None
    graph = Graph.from_edges(arrays["src"], arrays["dst"], nodes, time=arrays.get("ts"), edge_id=True)
    if "rating" in arrays:  # trust or distrust: what an event can be classified by
        arrays["edge_label"] = (arrays["rating"] > 0).astype(np.int64)
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays))


def _snapshots(arrays: Arrays) -> Dataset:
    rows = arrays["signal"].shape[1] if "signal" in arrays else arrays["x"].shape[1]
    src, dst = arrays["edge_index"]
    graph = Graph.from_edges(src, dst, rows, weight=arrays.get("edge_weight"), edge_id=True)
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays))


def _relations(arrays: Arrays) -> list[tuple[str, str]]:
    """The (kind, kind) pairs that have an edge list `kind_kind`, where the kinds are those counted by `num_kind`."""
    kinds = [name.removeprefix("num_") for name in arrays if name.startswith("num_")]
    return [(a, b) for a in kinds for b in kinds if f"{a}_{b}" in arrays]


def _typed(arrays: Arrays) -> Dataset:
    kinds = [name.removeprefix("num_") for name in arrays if name.startswith("num_")]
    starts = dict(zip(kinds, np.cumsum([0] + [int(arrays[f"num_{kind}"]) for kind in kinds]).tolist(), strict=False))
    nodes = sum(int(arrays[f"num_{kind}"]) for kind in kinds)
    pairs = [arrays[f"{a}_{b}"] + np.array([[starts[a]], [starts[b]]]) for a, b in _relations(arrays)]
    src, dst = np.concatenate(pairs, axis=1)
    graph = Graph.from_edges(src, dst, nodes, undirected=True)
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays) | {f"first_{k}": s for k, s in starts.items()})


def _dense(arrays: Arrays) -> Dataset:
    src, dst = np.nonzero(arrays["adj"])
    graph = Graph.from_edges(src, dst, len(arrays["adj"]), weight=arrays["adj"][src, dst])
    return Dataset(graph, extra=_rest(arrays), info=_info(arrays))


def _features(arrays: Arrays) -> Tensor | None:
    if "x" in arrays:
        return torch.from_numpy(arrays.pop("x").astype(np.float32, copy=False))
    if "x_indptr" not in arrays:
        return None
    indptr, columns, values, shape = (arrays.pop(f"x_{part}") for part in ("indptr", "indices", "values", "shape"))
    dense = np.zeros(tuple(shape), np.float32)
    dense[np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), columns] = values
    return torch.from_numpy(dense)


def _labels(arrays: Arrays) -> Tensor | None:
    if "y" in arrays:
        return torch.from_numpy(arrays.pop("y").astype(np.int64))
    if "y_indptr" not in arrays:
        return None
    indptr, columns = arrays.pop("y_indptr"), arrays.pop("y_indices")
    marks = np.zeros((len(indptr) - 1, int(arrays["num_labels"])), bool)
    marks[np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), columns] = True
    return torch.from_numpy(marks)


def _rest(arrays: Arrays) -> dict[str, Tensor]:
    return {k: torch.from_numpy(np.ascontiguousarray(a)) for k, a in arrays.items() if a.ndim and a.dtype.kind in "iufb"}


def _info(arrays: Arrays) -> dict[str, object]:
    return {name: a.item() for name, a in arrays.items() if a.ndim == 0}
