import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data

import headrace.pyg
from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.pyg import accelerate

WIDTH, NODES, EDGES, CLASSES = 8, 400, 1600, 5


def graph() -> Data:
    generator = torch.Generator().manual_seed(3)
    src = torch.randint(0, NODES - 20, (EDGES,), generator=generator)  # the last nodes are isolated
    dst = torch.randint(0, NODES - 20, (EDGES,), generator=generator)
    src[:30] = dst[:30]  # loops
    return Data(
        x=torch.randn(NODES, WIDTH, generator=generator),
        edge_index=torch.stack([src, dst]),
        edge_attr=torch.randn(EDGES, 3, generator=generator),
        edge_weight=torch.rand(EDGES, generator=generator) + 0.1,
        edge_type=torch.randint(0, 4, (EDGES,), generator=generator),
        y=torch.randint(0, CLASSES, (NODES,), generator=generator),
    )


class Stack(nn.Module):
    """Layers as PyG's examples write them, with something row by row in between."""

    def __init__(self, make: Callable[[int, int], nn.Module], beside: str, layers: int = 3) -> None:
        super().__init__()
        widths = [WIDTH, *[12] * (layers - 1), CLASSES]
        self.convs = nn.ModuleList(make(*pair) for pair in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(layers - 1))
        self.beside = beside

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        more = [batch[self.beside]] if self.beside else []
        for conv, norm in zip(self.convs, [*self.norms, None], strict=True):
            x = conv(x, batch.edge_index, *more)
            x = x if norm is None else norm(x).relu()
        return x


LAYERS: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
    "sage": (lambda i, o: pyg.SAGEConv(i, o), ""),
    "sage max": (lambda i, o: pyg.SAGEConv(i, o, aggr="max", project=True, normalize=True), ""),
    "graph": (lambda i, o: pyg.GraphConv(i, o, aggr="mean"), "edge_weight"),
    "gcn": (lambda i, o: pyg.GCNConv(i, o), ""),
    "gcn weighted": (lambda i, o: pyg.GCNConv(i, o, improved=True), "edge_weight"),
    "gcn plain": (lambda i, o: pyg.GCNConv(i, o, add_self_loops=False), ""),
    "gin": (lambda i, o: pyg.GINConv(nn.Linear(i, o), train_eps=True), ""),
    "gine": (lambda i, o: pyg.GINEConv(nn.Linear(i, o), edge_dim=3), "edge_attr"),
    "gat": (lambda i, o: pyg.GATConv(i, o, heads=2, concat=False), ""),
    "gat residual": (lambda i, o: pyg.GATConv(i, o, add_self_loops=False, residual=True), ""),
    "gat edges": (lambda i, o: pyg.GATConv(i, o, heads=2, concat=False, edge_dim=3), "edge_attr"),
    "gatv2": (lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False), ""),
    "gatv2 shared": (lambda i, o: pyg.GATv2Conv(i, o, share_weights=True), ""),
    "transformer": (lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, beta=True), ""),
    "transformer edges": (lambda i, o: pyg.TransformerConv(i, o, edge_dim=3), "edge_attr"),
    "rgcn": (lambda i, o: pyg.RGCNConv(i, o, 4), "edge_type"),
    "rgcn bases": (lambda i, o: pyg.RGCNConv(i, o, 4, num_bases=2, aggr="sum"), "edge_type"),
}


def twins(name: str, layers: int = 3) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    theirs = Stack(*LAYERS[name], layers)
    ours = copy.deepcopy(theirs)
    assert len(accelerate(ours, trim=True).changed) == layers
    return theirs, ours


@pytest.mark.parametrize("name", LAYERS)
def test_seeds_have_pygs_rows_and_gradients(name: str) -> None:
    theirs, ours = twins(name)
    seeds = torch.cat([torch.arange(0, 60, 3), torch.arange(NODES - 4, NODES)])  # isolated ones too
    for fanout in ([3, 2, 2], [-1, -1, -1], [4, 0, 2]):
        batch = next(iter(NeighborLoader(graph(), fanout, input_nodes=seeds, batch_size=len(seeds))))
        found = {}
        for model in (theirs, ours):
            x = batch.x.clone().requires_grad_()
            out = model(x, batch)
            model.zero_grad()
            nn.functional.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size]).backward()
            found[model] = [out[: batch.batch_size].detach(), x.grad, *(p.grad for p in model.parameters())]
        if 0 not in fanout:
            assert len(out) == batch.batch_size < len(batch.x)
        for expected, ours_found in zip(found[theirs], found[ours], strict=True):
            torch.testing.assert_close(ours_found, expected, rtol=1e-5, atol=1e-6)


def test_rows_fall_hop_by_hop_and_fewer_layers_than_hops_leave_more() -> None:
    _, ours = twins("sage", layers=2)
    batch = next(iter(NeighborLoader(graph(), [3, 2, 2], input_nodes=torch.arange(20), batch_size=20)))
    counts: list[int] = []
    for conv in ours.convs:
        conv.register_forward_hook(lambda module, inputs, out: counts.append(len(out)))
    ours(batch.x, batch)
    hops = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    assert counts == [hops[2], hops[1]]


def test_a_layer_more_than_hops_is_refused_in_words() -> None:
    _, ours = twins("sage")
    batch = next(iter(NeighborLoader(graph(), [3, 2], input_nodes=torch.arange(20), batch_size=20)))
    with pytest.raises(ValueError, match=r"2 hops, and this is layer 3; call accelerate\(model\) without trim"):
        ours(batch.x, batch)


def test_a_hook_on_a_step_is_refused_once_rows_are_missing() -> None:
    _, ours = twins("sage")
    ours.convs[1].register_message_forward_hook(lambda *_: None)
    batch = next(iter(NeighborLoader(graph(), [3, 2, 2], input_nodes=torch.arange(20), batch_size=20)))
    with pytest.raises(ValueError, match="hooks"):
        ours(batch.x, batch)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_what_was_not_sampled_by_us_is_computed_whole(name: str) -> None:
    theirs, ours = twins(name)
    data = graph()
    torch.testing.assert_close(ours(data.x, data), theirs(data.x, data), rtol=1e-5, atol=1e-5)
    batch = next(iter(NeighborLoader(data, [3, 3, 3], input_nodes=torch.arange(20), batch_size=20)))
    batch.edge_index = batch.edge_index.clone()
    assert len(ours(batch.x, batch)) == len(batch.x)


def test_link_batches_have_the_ends_of_their_edges() -> None:
    theirs, ours = twins("sage")
    loader = LinkNeighborLoader(
        graph(), [3, 2, 2], edge_label_index=graph().edge_index[:, :50], neg_sampling="binary", batch_size=25
    )
    for batch in loader:
        found, expected = ours(batch.x, batch), theirs(batch.x, batch)
        for ends in batch.edge_label_index:
            torch.testing.assert_close(found[ends], expected[ends], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (pyg.GraphSAGE(8, 8, 2, norm="batch_norm"), "normalizes over nodes"),
        (pyg.GraphSAGE(8, 8, 2, norm="layer_norm"), "mode='graph'"),
        (pyg.GraphSAGE(8, 8, 2, norm="graph_norm"), "normalizes over nodes"),
        (pyg.GraphSAGE(8, 8, 2, jk="cat"), "joins rows of several layers"),
        (pyg.GraphSAGE(8, 8, 2, aggr="median"), "no kernel"),
        (nn.ModuleList([pyg.SAGEConv(8, 8), pyg.ChebConv(8, 8, K=2)]), "no accelerated form"),
        (nn.Sequential(pyg.GINConv(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))), "statistics are over all nodes"),
        (pyg.HeteroConv({("a", "to", "a"): pyg.SAGEConv((8, 8), 8)}), "several types"),
    ],
)
def test_models_that_would_notice_missing_rows_are_refused(model: nn.Module, reason: str) -> None:
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=reason):
        accelerate(model, trim=True)
    assert [type(module) for module in model.modules()] == kinds


def test_row_by_row_norms_are_taken_and_restoring_ends_it() -> None:
    model = pyg.GraphSAGE(WIDTH, 12, 3, CLASSES, norm=pyg.LayerNorm(12, mode="node"))
    report = accelerate(model, trim=True)
    assert "3 of 3 message-passing layers, trimmed" in repr(report)
    batch = next(iter(NeighborLoader(graph(), [3, 2, 2], input_nodes=torch.arange(20), batch_size=20)))
    assert len(model(batch.x, batch.edge_index)) == 20
    report.restore()
    assert len(model(batch.x, batch.edge_index)) == len(batch.x)
    accelerate(model, trim=True)
    assert len(model(batch.x, batch.edge_index)) == 20
    accelerate(model)
    assert len(model(batch.x, batch.edge_index)) == len(batch.x)


def test_layers_that_were_imported_as_ours_can_be_trimmed() -> None:
    model = nn.ModuleList([headrace.pyg.SAGEConv(WIDTH, 8)])
    accelerate(model, trim=True)
    batch = next(iter(NeighborLoader(graph(), [3], input_nodes=torch.arange(20), batch_size=20)))
    assert len(model[0](batch.x, batch.edge_index)) == 20
