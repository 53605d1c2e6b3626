"""The commands that leave something behind, each with a digest of what must be the same after any fault and a resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from children import command
from torch import Tensor

import headrace as hr
from headrace.cluster import Part, is_partition
from headrace.store import Partitioned
from headrace.train import Run

Work = Callable[[], int | None]
_TIMES = (
    "seconds",
    "time",
    "throughput",
    "memory",
    "stages",
    "cache",
    "bytes",
    "disk",
    "in_flight",
    "peak",
    "run",
    "plan",
    "ranks",
    "balance",  # of snapshot groups, by measured seconds
    "costs",
    "per_second",
    "elastic",  # calls that a process made
)
_MEASURED = {"peak", "costs", "spent"}  # of a recipe's own state
_NODE = ["--hidden", "8", "--fanout", "4,4", "--batch-size", "40", "--epochs", "3", "--threads", "1", "--log-every", "1"]
_LINK = [
    "--dim",
    "8",
    "--batch-size",
    "200",
    "--negatives",
    "20",
    "--chunks",
    "4",
    "--threads",
    "1",
    "--init",
    "0.1",
    "--epochs",
    "3",
]
_LINK += ["--validate-every", "1", "--val-edges", "40", "--test-edges", "40", "--log-every", "1"]
_EVENTS = ["--batch-size", "100", "--epochs", "4", "--hidden", "8", "--neighbors", "3", "--parallel", "1x2x2", "--candidates", "3"]
_SNAPSHOTS = ["--window", "4", "--hidden", "4", "--groups", "6", "--stack", "2", "--epochs", "4"]
_OFTEN = ["--checkpoint-seconds", "0.01"]


@dataclass(frozen=True)
class Inputs:
    """Small datasets and runs that the commands read."""

    nodes: Path
    triples: Path
    edges: Path
    trained: Path
    links: Path

    @classmethod
    def make(cls, folder: Path) -> Inputs:
        """Make all but the runs, which `trained_by` makes in a child."""
        folder.mkdir(parents=True, exist_ok=True)
        data = hr.generate.community(nodes=300, edges=3000, classes=3, features=8, seed=2, splits=(0.4, 0.2, 0.4), threads=1)
        data.save(folder / "nodes")
        hr.generate.knowledge(nodes=200, edges=2000, relations=3, seed=1, threads=1).save(folder / "triples")
        src, dst = data.graph.edge_index()
        lines = "".join(f"u{a},v{b}\n" for a, b in zip(src.tolist(), dst.tolist(), strict=True))
        (folder / "edges.csv").write_text("src,dst\n" + lines, encoding="utf-8")
        return cls(folder / "nodes", folder / "triples", folder / "edges.csv", folder / "trained", folder / "links")

    def trained_by(self) -> list[Work]:
        """What makes the runs that predict and export read."""
        node = ["train", "node", str(self.nodes), *_NODE, "--out", str(self.trained)]
        link = ["train", "link", str(self.triples), *_LINK, "--out", str(self.links)]
        return [command(node), command(link)]


@dataclass(frozen=True)
class Case:
    """A stateful command: how it is started at a place, how it goes on there, and what of it must be the same."""

    name: str
    start: Callable[[Path], Work]
    resume: Callable[[Path], Work]
    digest: Callable[[Path], str]
    one_shot: bool = False  # its result is whole or not there at any time
    ranks: int = 1

    @property
    def reads_runs(self) -> bool:
        return self.name.split()[0] in ("export", "predict", "report")


def cases(inputs: Inputs) -> list[Case]:
    """All of them."""
    node, link = str(inputs.nodes), str(inputs.triples)
    disk = ["--storage", "disk", "--memory", "64MiB"]
    resident = ["--storage", "resident", "--memory", "64MiB", "--partitions", "4"]
    parts = ["--storage", "disk", "--partitions", "4", "--buffer", "2"]
    sage = ["--encoder", "sage", "--fanout", "3"]
    by_intervals = ["--model", "gcn", "--full-batch", "--flow", "pipe", "--intervals", "3", "--hidden", "8", "--epochs", "4"]
    return [
        _training("node in memory", "node", node, _NODE),
        _training("node on disk", "node", node, [*_NODE, *disk]),
        _training("node resident", "node", node, [*_NODE, *resident]),
        _training("node on two ranks", "node", node, _NODE, ranks=2),
        _training("link in memory", "link", link, _LINK),
        _training("link on disk", "link", link, [*_LINK, *parts]),
        _training("link with an encoder", "link", link, [*_LINK, *sage]),
        _training("link with an encoder on disk", "link", link, [*_LINK, *parts, *sage]),
        _training("node by intervals", "node", node, [*by_intervals, "--threads", "1", "--log-every", "1"]),
        _training("events", "temporal", "generate:events,nodes=60,events=1500", [*_EVENTS, "--threads", "1", "--log-every", "1"]),
        _training(
            "snapshots",
            "snapshot",
            "generate:snapshots,nodes=30,edges=120,steps=60",
            [*_SNAPSHOTS, "--threads", "1", "--log-every", "1"],
        ),
        _once("import", lambda out: command(["import", str(inputs.edges), str(out), "--threads", "1"]), _dataset_digest),
        _once("save", lambda out: _saver(inputs.nodes, out), _dataset_digest),
        _once("reorder", lambda out: command(["reorder", node, str(out), "--order", "degree"]), _dataset_digest),
        _once("partition", lambda out: command(["partition", node, str(out), "--parts", "3", "--by", "ldg"]), _partition_digest),
        _once(
            "partition by column",
            lambda out: command(["partition", node, str(out), "--parts", "3", "--columns"]),
            _partition_digest,
        ),
        _once("export", lambda out: command(["export", str(inputs.links), "--out", str(out)]), _file_digest),
        _once(
            "export as npy", lambda out: command(["export", str(inputs.links), "--format", "npy", "--out", str(out)]), _file_digest
        ),
        _once("predict", lambda out: command(["predict", str(inputs.trained), node, "--out", str(out)]), _file_digest),
        _once("report", lambda out: command(["report", str(inputs.trained), "--out", str(out)]), _page_digest),
    ]


def _training(name: str, task: str, data: str, options: list[str], *, ranks: int = 1) -> Case:
    base = ["train", task, data]

    def begin(out: Path) -> Work:
        return command([*base, *options, *_OFTEN, "--out", str(out)])

    def go_on(out: Path) -> Work:
        begun = (out / "options.json").is_file()
        return command([*base, *_OFTEN, "--out", str(out), "--resume"]) if begun else begin(out)

    return Case(name, begin, go_on, run_digest, ranks=ranks)


def _once(name: str, start: Callable[[Path], Work], digest: Callable[[Path], str]) -> Case:
    return Case(name, start, start, digest, one_shot=True)


def _saver(source: Path, out: Path) -> Work:
    def work() -> None:
        try:
            hr.open(source).save(out)
        except (OSError, KeyboardInterrupt) as error:
            print(error)
            raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 2) from None

    return work


def _dataset_digest(path: Path) -> str:
    data, hashed = hr.open(path, verify=True), hashlib.sha256()
    for name, array in sorted(data._arrays().items()):
        _add(hashed, [name, array])
    return hashed.hexdigest()


def _partition_digest(path: Path) -> str:
    """Of all parts; those of a partition that is not complete are at least whole."""
    parts = [Part.open(folder, verify=True) for folder in sorted(path.glob("part-*")) if (folder / "meta.json").exists()]
    if not is_partition(path):
        raise FileNotFoundError(path)
    hashed = hashlib.sha256()
    for part in [Part.open(path, number) for number in range(parts[0].parts)]:
        _add(hashed, {name: value for name, value in vars(part).items() if name != "owners"})
        _add(hashed, [part.owners.fingerprint, part.ids])
    return hashed.hexdigest()


def _file_digest(path: Path) -> str:
    hashed = hashlib.sha256()
    if not path.is_file():
        raise FileNotFoundError(path)
    for file in sorted(path.parent.glob(f"{path.stem}*")):
        if file.suffix != ".new":
            _add(hashed, [file.name, file.read_bytes()])
    return hashed.hexdigest()


def _page_digest(path: Path) -> str:
    """A page says when it was made: it is whole if it ends as pages do."""
    return path.read_text(encoding="utf-8").rstrip()[-7:]


def run_digest(path: Path) -> str:
    """Weights, rows and states of optimizers to the bit, and the log and results without times. Raises where a run is not whole."""
    run, hashed = Run(path), hashlib.sha256()
    result = run.result()
    if result is None:
        raise FileNotFoundError(f"{path} has no result")
    _add(hashed, [_lasting(line) for line in run.metrics()])
    _add(hashed, _lasting(result))
    for name in ("last", "best"):
        if run.has_checkpoint(name):
            _add(hashed, _weights(run.load_checkpoint(name)))
    if (path / "rows").is_dir():
        with Partitioned.open(path / "rows", capacity=1, spare=0) as rows:
            assert isinstance(rows.extra, bytes)
            _add(hashed, _weights(torch.load(BytesIO(rows.extra), weights_only=True)))
            for begin, piece in rows.scan(rows=1 << 20):
                _add(hashed, [begin, piece])
    if (path / "encoded.npy").is_file():
        _add(hashed, np.load(path / "encoded.npy"))
    if left := [file.name for file in path.rglob("*.new")]:
        raise AssertionError(f"{path} holds unfinished files: {left}")
    return hashed.hexdigest()


def _weights(saved: dict[str, Any]) -> list[Any]:
    """The parts of a checkpoint that the rest of a run depends on, but for times."""
    recipe = {name: value for name, value in (saved.get("recipe") or {}).items() if "use" not in name and name not in _MEASURED}
    return [saved.get("model"), saved.get("optimizer"), recipe, saved.get("best")]


def _lasting(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not any(word in name for word in _TIMES)}


def _add(hashed: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            _add(hashed, [str(key), value[key]])
    elif isinstance(value, list | tuple):
        hashed.update(b"[")
        for item in value:
            _add(hashed, item)
    elif isinstance(value, Tensor):
        _add(hashed, value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.dim() else float(value))
    elif isinstance(value, np.ndarray):
        hashed.update(str(value.shape).encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes):
        hashed.update(value)
    else:
        hashed.update(json.dumps(value, default=str).encode())
