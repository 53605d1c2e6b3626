"""Link datasets of the Temporal Graph Benchmark (Huang et al., NeurIPS 2023), as its package `py-tgb` unpacks them.

Times that part training, validation and test (the quantiles 0.70 and 0.85) are `info["val_time"]` and `info["test_time"]`, which
link prediction goes by.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import torch

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.known.packages.tables import Array, read_numbers

PREFIXES = ("tgbl-", "tgbn-", "tkgl-", "thgl-")
_USERS_AND_ITEMS = ("tgbl-wiki", "tgbl-subreddit", "tgbl-uci", "tgbl-enron", "tgbl-lastfm")  # user, item, time, label, features
_WEIGHTED = ("tgbl-coin", "tgbl-review")  # time, source, target, weight


def fetch(name: str) -> str:
    """The line that fetches a dataset."""
    code = f"from tgb.linkproppred.dataset import LinkPropPredDataset; LinkPropPredDataset('{name}')"
    return f'python -c "{code}" (pip install py-tgb)'


def places() -> list[Path]:
    """Where the package puts datasets: beside its own code; and the folder `datasets`, here and above."""
    spec = find_spec("tgb")
    own = [Path(place) / "datasets" for place in (spec.submodule_search_locations or ())] if spec is not None else []
    here = Path.cwd()
    return [*own, *(above / "datasets" for above in (here, *here.parents))]


def folders(name: str) -> list[str]:
    """What the folder of a dataset is called."""
    return [name.replace("-", "_")]


def read(name: str, folder: Path) -> Dataset:
    """The dataset in a folder that `py-tgb` has unpacked; of several versions the newest."""
    if name not in (*_USERS_AND_ITEMS, *_WEIGHTED):
        known = ", ".join((*_USERS_AND_ITEMS, *_WEIGHTED))
        raise ValueError(f"{name} is not read yet; of TGB these are: {known}. Import others from their CSV files")
    files = sorted(folder.glob(f"{name}_edgelist*.csv"))
    if not files:
        raise FileNotFoundError(f"{folder} has no {name}_edgelist.csv: the folder is not complete; this fetches it: {fetch(name)}")
    src, dst, time, weight, features, users = _users_and_items(files[-1]) if name in _USERS_AND_ITEMS else _weighted(files[-1])
    cuts = np.quantile(time, [0.70, 0.85])
    graph = Graph.from_edges(src, dst, time=time, weight=weight, edge_id=True)
    return Dataset(
        graph,
        extra={} if features is None else {"edge_features": torch.from_numpy(features)},
        info={"val_time": float(cuts[0]), "test_time": float(cuts[1]), **({} if users is None else {"num_users": users})},
    )


Events = tuple[Array, Array, Array, Array | None, Array | None, int | None]


def _users_and_items(file: Path) -> Events:
    """Items are numbered after users."""
    rows = read_numbers(file, np.float64, skip=1)
    src, dst = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    users = int(src.max()) + 1
    features = rows[:, 4:].astype(np.float32) if rows.shape[1] > 4 else None
    return src, dst + users, rows[:, 2].copy(), None, features, users


def _weighted(file: Path) -> Events:
    """Nodes are numbered as they first come up, sources before targets; weights are logarithms, as the package has them."""
    names = ["time", "src", "dst", "weight"]
    table = pacsv.read_csv(
        file,
        read_options=pacsv.ReadOptions(column_names=names, skip_rows=1),
        convert_options=pacsv.ConvertOptions(
            column_types={"time": pa.int64(), "src": pa.string(), "dst": pa.string(), "weight": pa.float64()}
        ),
    )
    ends = np.stack([table[name].to_numpy() for name in ("src", "dst")], axis=1).ravel()
    numbers = pa.array(ends, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64).reshape(-1, 2)
    weight = table["weight"].to_numpy().copy()
    weight[weight == 0] = 1
    return numbers[:, 0], numbers[:, 1], table["time"].to_numpy(), np.log2(weight).astype(np.float32), None, None
