"""PyG's layers with their options, and how one of them is compared with its accelerated form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from headrace.pyg import accelerate

NODES, SOURCES, EDGES, WIDTH = 40, 55, 260, 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, 5))


def inputs(kind: str, *, seed: int = 0, edges: int = EDGES) -> dict[str, Any]:
    """Features and edges with repeated edges, loops, and nodes without any; the last targets are isolated."""
    generator = torch.Generator().manual_seed(seed)
    sources = SOURCES if kind == "bipartite" else NODES
    src = torch.randint(0, sources, (edges,), generator=generator)
    dst = torch.randint(0, NODES - 5, (edges,), generator=generator)
    if edges > 10:
        src[:5], dst[:5] = dst[:5], dst[:5]  # loops
        src[5:9], dst[5:9] = src[9:13], dst[9:13]  # twice
    x = torch.randn(sources, WIDTH, generator=generator)
    return {
        "x": (x, torch.randn(NODES, WIDTH, generator=generator)) if kind == "bipartite" else x,
        "edge_index": torch.stack([src, dst]),
        "edge_weight": torch.rand(edges, generator=generator) + 0.1,
        "edge_attr": torch.randn(edges, 3, generator=generator),
        "wide_attr": torch.randn(edges, WIDTH, generator=generator),
        "edge_type": torch.randint(0, 4, (edges,), generator=generator),
    }


def per_aggr(make: Callable[..., nn.Module], name: str, *beside: str) -> list[tuple[str, Callable[[], nn.Module], tuple[str, ...]]]:
    return [(f"{name} {aggr}", lambda aggr=aggr: make(aggr=aggr), beside) for aggr in ("sum", "mean", "max")]


# Name, constructor, what is passed beside x and edge_index; x is one tensor or a pair.
BOTH: list[tuple[str, Callable[[], nn.Module], tuple[str, ...]]] = [
    *per_aggr(lambda **o: pyg.SAGEConv((WIDTH, WIDTH), 5, **o), "sage"),
    *per_aggr(lambda **o: pyg.SAGEConv((-1, -1), 20, **o), "sage lazy wide"),
    ("sage normalized", lambda: pyg.SAGEConv((WIDTH, WIDTH), 5, normalize=True, root_weight=False), ()),
    ("sage projected", lambda: pyg.SAGEConv((WIDTH, WIDTH), 5, project=True, bias=False), ()),
    *per_aggr(lambda **o: pyg.GraphConv((WIDTH, WIDTH), 5, **o), "graph"),
    *per_aggr(lambda **o: pyg.GraphConv((WIDTH, WIDTH), 20, bias=False, **o), "graph weighted", "edge_weight"),
    *per_aggr(lambda **o: pyg.GINConv(mlp(), eps=0.3, train_eps=True, **o), "gin"),
    ("gine", lambda: pyg.GINEConv(mlp(), train_eps=True), ("wide_attr",)),
    ("gine edge_dim", lambda: pyg.GINEConv(mlp(), edge_dim=3, aggr="mean"), ("edge_attr",)),
    *[
        (f"{conv.__name__} {number}", lambda conv=conv, options=options: conv((WIDTH, WIDTH), 4, **options), beside)
        for conv in (pyg.GATConv, pyg.GATv2Conv)
        for number, (options, beside) in enumerate(
            [
                ({}, ()),
                ({"heads": 3, "residual": True}, ()),
                ({"heads": 2, "concat": False, "add_self_loops": False, "bias": False}, ()),
                ({"heads": 2, "negative_slope": 0.5, "edge_dim": 3}, ("edge_attr",)),
                ({"heads": 2, "edge_dim": 3, "add_self_loops": False, "dropout": 0.5}, ("edge_attr",)),
                ({"heads": 2, "edge_dim": 1, "fill_value": 0.5}, ("edge_weight",)),
            ]
        )
    ],
    ("transformer", lambda: pyg.TransformerConv((WIDTH, WIDTH), 4, heads=3), ()),
    ("transformer beta", lambda: pyg.TransformerConv((WIDTH, WIDTH), 4, heads=2, concat=False, beta=True, dropout=0.4), ()),
    ("transformer edges", lambda: pyg.TransformerConv((WIDTH, WIDTH), 4, heads=2, edge_dim=3, root_weight=False), ("edge_attr",)),
    *per_aggr(lambda **o: pyg.RGCNConv((WIDTH, WIDTH), 6, 4, **o), "rgcn", "edge_type"),
    ("rgcn bases", lambda: pyg.RGCNConv((WIDTH, WIDTH), 6, 5, num_bases=3), ("edge_type",)),
    ("rgcn blocks", lambda: pyg.RGCNConv((WIDTH, WIDTH), 6, 4, num_blocks=2, root_weight=False, bias=False), ("edge_type",)),
]
ONE: list[tuple[str, Callable[[], nn.Module], tuple[str, ...]]] = [
    ("sage flow", lambda: pyg.SAGEConv(WIDTH, 5, flow="target_to_source"), ()),
    ("gin flow", lambda: pyg.GINConv(mlp(), flow="target_to_source"), ()),
    ("transformer flow", lambda: pyg.TransformerConv(WIDTH, 4, heads=2, flow="target_to_source"), ()),
    ("gat flow", lambda: pyg.GATConv(WIDTH, 4, heads=2, flow="target_to_source"), ()),
    ("gat flow edges", lambda: pyg.GATConv(WIDTH, 4, heads=2, edge_dim=3, flow="target_to_source"), ("edge_attr",)),
    ("gat one map", lambda: pyg.GATConv(-1, 4, heads=2), ()),
    ("gatv2 shared", lambda: pyg.GATv2Conv(WIDTH, 4, heads=2, share_weights=True), ()),
    *[
        (f"gcn {number}", lambda options=options, out=out: pyg.GCNConv(WIDTH, out, **options), beside)
        for out in (5, 20)
        for number, (options, beside) in enumerate(
            [
                ({}, ()),
                ({"improved": True}, ()),
                ({"improved": True}, ("edge_weight",)),
                ({"add_self_loops": False, "bias": False}, ()),
                ({"add_self_loops": False}, ("edge_weight",)),
                ({"normalize": False}, ("edge_weight",)),
                ({"cached": True}, ("edge_weight",)),
                ({"flow": "target_to_source"}, ("edge_weight",)),
            ]
        )
    ],
]
CASES = [(kind, *case) for kind in ("plain", "bipartite") for case in BOTH] + [("plain", *case) for case in ONE]
NAMES = [f"{kind} {name}" for kind, name, *_ in CASES]


def both(make: Callable[[], nn.Module], *, training: bool = False) -> tuple[nn.Module, nn.Module]:
    """A layer of PyG's and its accelerated copy."""
    torch.manual_seed(0)
    theirs = make()
    ours = copy.deepcopy(theirs)
    report = accelerate(ours)
    assert len(report.changed) == 1, report
    return theirs.train(training), ours.train(training)


def results(conv: nn.Module, given: dict[str, Any], beside: tuple[str, ...]) -> dict[str, Tensor]:
    """The output and all gradients."""
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(leaf(f"{name}{i}", part) for i, part in enumerate(value))
        if not value.is_floating_point():
            return value
        leaves[name] = value.clone().requires_grad_()
        return leaves[name]

    features = leaf("x", given["x"])
    more = [leaf(name, given[name]) for name in beside]
    torch.manual_seed(1)
    out = conv(features, given["edge_index"], *more)
    conv.zero_grad()
    (out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum().backward()
    found = {"out": out.detach()} | {f"grad of {name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return found | {f"grad of {name}": p.grad for name, p in conv.named_parameters() if p.grad is not None}


def check_equal(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
