"""Recurrent cells beside PyG Temporal's, with the same weights: `python benchmarks/pyg_temporal_cells.py PATH [--json]`.

PATH is a checkout of benedekrozemberczki/pytorch_geometric_temporal, or a git directory of it. Only its cell files are read, which
run on torch-geometric alone: the package as a whole wants torch-sparse and torch-scatter.

Each cell runs over three snapshots, of which one is empty; loops and repeated edges come up. Printed are the largest differences
of the rows after the last snapshot and of the gradients of every weight, relative to the larger of 1 and the value. What is not
compared as it stands is said in `note`. WD-GCN is not in PyG Temporal: tests/nn/cells has its equations in plain torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr

_CELLS = Path("torch_geometric_temporal/nn/recurrent")
_PACKAGE = "pyg_temporal_cells_of_a_checkout"
NODES, WIDTH, OUT = 40, 4, 6
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Compared:
    """A cell and how far it is from PyG Temporal's."""

    cell: str
    rows: float
    gradients: float
    weights: int
    note: str = ""


@dataclass(frozen=True)
class Case:
    """Our cell, theirs, what theirs calls our weights, and how theirs is run over the snapshots."""

    name: str
    ours: nn.Module
    theirs: nn.Module
    run: Callable[[Sequence[Tensor], Sequence[hr.Graph]], Tensor]
    rename: Callable[[str], str] = str
    weighted: bool = True
    note: str = ""


def load_cells(path: Path) -> types.ModuleType:
    """The folder of cell files as a package of its own."""
    folder = path / _CELLS
    if not folder.is_dir():
        folder = _taken_out(path) / _CELLS
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[_PACKAGE] = package
    return package


def _taken_out(path: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pyg-temporal-"))
    packed = subprocess.run(["git", "-C", str(path), "archive", "HEAD", str(_CELLS)], capture_output=True, check=False)
    if packed.returncode:
        raise SystemExit(f"{path} has no {_CELLS}, and is no git directory that has it: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def their(module: str, name: str) -> Any:
    """A class of a cell file."""
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)


def cases() -> list[Case]:
    """Every cell that both have."""
    return [
        _tgcn(),
        _a3tgcn(),
        *(_chebyshev(name, K) for name in ("GConvGRU", "GCLSTM") for K in (1, 2, 3)),
        _lrgcn(),
        _evolve("O"),
        _evolve("H"),
        _mpnn(1),
        _mpnn(3),
    ]


def _edges(graph: hr.Graph) -> tuple[Tensor, Tensor | None]:
    return graph.edge_index().long(), graph.weight


def _tgcn() -> Case:
    theirs = their("temporalgcn", "TGCN")(WIDTH, OUT)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        hidden = None
        for x, graph in zip(xs, graphs, strict=True):
            hidden = theirs(x, *_edges(graph), hidden)
        assert hidden is not None
        return hidden

    return Case("TGCN", hr.nn.TGCN(WIDTH, OUT), theirs, run)


def _a3tgcn() -> Case:
    theirs = their("attentiontemporalgcn", "A3TGCN")(WIDTH, OUT, 3)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        out: Tensor = theirs(torch.stack(list(xs), dim=2), *_edges(graphs[0]))
        return out

    def rename(name: str) -> str:
        return "_attention" if name == "attention" else f"_base_tgcn.{name}"

    note = "theirs has one graph, and begins every snapshot from the initial state: ours with recurrent=False"
    return Case("A3TGCN", hr.nn.A3TGCN(WIDTH, OUT, 3, recurrent=False), theirs, run, rename, note=note)


def _chebyshev(name: str, K: int) -> Case:  # noqa: N803 - their name
    theirs = their("gconv_gru" if name == "GConvGRU" else "gc_lstm", name)(WIDTH, OUT, K)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        state: tuple[Tensor | None, ...] = (None,) if name == "GConvGRU" else (None, None)
        for x, graph in zip(xs, graphs, strict=True):
            made = theirs(x, *_edges(graph), *state)
            state = made if isinstance(made, tuple) else (made,)
        assert state[0] is not None
        return state[0]

    return Case(f"{name}, K={K}", getattr(hr.nn, name)(WIDTH, OUT, K), theirs, run)


def _lrgcn() -> Case:
    theirs = their("lrgcn", "LRGCN")(WIDTH, OUT, 2, 3)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        hidden = memory = None
        for x, graph in zip(xs, graphs, strict=True):
            edges = graph.edge_index().long()
            kinds = torch.arange(2).repeat_interleave(edges.shape[1])
            hidden, memory = theirs(x, torch.cat([edges, edges.flip(0)], dim=1), kinds, hidden, memory)
        assert hidden is not None
        return hidden

    note = "its relations are edges in and edges out, as in the paper; they have no weights"
    return Case("LRGCN", hr.nn.LRGCN(WIDTH, OUT, num_bases=3), theirs, run, weighted=False, note=note)


def _evolve(kind: str) -> Case:
    sizes = (WIDTH,) if kind == "O" else (NODES, WIDTH)
    theirs = their(f"evolvegcn{kind.lower()}", f"EvolveGCN{kind}")(*sizes)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        theirs.reinitialize_weight()
        for x, graph in zip(xs, graphs, strict=True):
            out: Tensor = theirs(x, *_edges(graph))
        return out

    def rename(name: str) -> str:
        return "pooling_layer.select.weight" if name == "score" else name

    return Case(f"EvolveGCN{kind}", getattr(hr.nn, f"EvolveGCN{kind}")(WIDTH), theirs, run, rename)


class _BySnapshot(nn.Module):
    """A norm of each snapshot's rows."""

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        parts = [nn.functional.batch_norm(part, None, None, self.weight, self.bias, training=True) for part in x.split(NODES)]
        return torch.cat(parts)


def _mpnn(window: int) -> Case:
    theirs = their("mpnn_lstm", "MPNNLSTM")(WIDTH, OUT // 2, NODES, window, 0.0)
    if window > 1:
        theirs._batch_norm_1, theirs._batch_norm_2 = _BySnapshot(theirs._batch_norm_1), _BySnapshot(theirs._batch_norm_2)

    def run(xs: Sequence[Tensor], graphs: Sequence[hr.Graph]) -> Tensor:
        edges = torch.cat([graph.edge_index().long() + NODES * at for at, graph in enumerate(graphs[:window])], dim=1)
        weight = torch.cat([graph.weight for graph in graphs[:window] if graph.weight is not None])
        out: Tensor = theirs(torch.cat(list(xs[:window])), edges, weight)
        return out[:, :OUT]

    names = {"conv": "_convolution", "norm": "_batch_norm", "lstm": "_recurrent"}

    def rename(name: str) -> str:
        first, rest = name.split("_", 1)
        number, weight = rest.split(".", 1)
        return f"{names[first]}_{number}.{weight}" + ("_l0" if first == "lstm" else "")

    note = "without the last values that theirs puts beside the rows"
    if window > 1:
        note += "; theirs norms a whole window's rows together, which is put to each snapshot's own here"
    return Case(f"MPNNLSTM, window {window}", hr.nn.MPNNLSTM(WIDTH, OUT), theirs, run, rename, note=note)


def compare(case: Case) -> Compared:
    """Rows and gradients of both, with our weights in theirs."""
    torch.manual_seed(1)
    graphs = []
    for edges in (120, 120 if case.name == "A3TGCN" else 0, 200):
        src, dst = torch.randint(0, NODES, (2, edges))
        graphs.append(hr.Graph.from_edges(src, dst, NODES, weight=torch.rand(edges) + 0.1 if case.weighted else None))
    if case.name == "A3TGCN":
        graphs = graphs[:1] * 3
    xs = [torch.randn(NODES, WIDTH) for _ in graphs]
    weights = dict(case.ours.named_parameters())
    known = dict(case.theirs.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(torch.randn_like(weight) / 2)
            known[case.rename(name)].copy_(weight.view_as(known[case.rename(name)]))
    state = None
    for x, graph in list(zip(xs, graphs, strict=True))[: 1 if case.name == "MPNNLSTM, window 1" else 3]:
        state = case.ours(x, graph, state)
    rows = case.ours.rows(state)  # type: ignore[operator]
    expected = case.run(xs, graphs)
    direction = torch.randn_like(rows)
    ours = torch.autograd.grad((rows * direction).sum(), list(weights.values()), allow_unused=True)
    others = [known[case.rename(name)] for name in weights]
    wanted = torch.autograd.grad((expected * direction).sum(), others, allow_unused=True)
    pairs = [(a, b) for a, b in zip(ours, wanted, strict=True) if a is not None or b is not None]
    filled = [(_or_zero(a, b), _or_zero(b, a)) for a, b in pairs]
    away = max(_difference(a.flatten(), b.flatten()) for a, b in filled)
    return Compared(case.name, _difference(rows, expected), away, len(filled), case.note)


def _or_zero(gradient: Tensor | None, other: Tensor | None) -> Tensor:
    if gradient is not None:
        return gradient
    assert other is not None
    return torch.zeros_like(other)


def _difference(some: Tensor, others: Tensor) -> float:
    return float(((some - others).abs() / others.abs().clamp_min(1.0)).max().detach())


def main() -> None:
    """Compare all cells; exit status 1 where one is further away than 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a checkout of PyG Temporal, or a git directory of it")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    load_cells(chosen.path)
    done = [compare(case) for case in cases()]
    if chosen.json:
        print(json.dumps([asdict(one) for one in done]))
    for one in () if chosen.json else done:
        note = f"  ({one.note})" if one.note else ""
        print(f"{one.cell:20} rows {one.rows:.1e}, gradients of {one.weights:2} weights {one.gradients:.1e}{note}")
    far = [one.cell for one in done if not max(one.rows, one.gradients) <= TOLERANCE]
    if far:
        raise SystemExit(f"further apart than {TOLERANCE:g}: {', '.join(far)}")


if __name__ == "__main__":
    main()
