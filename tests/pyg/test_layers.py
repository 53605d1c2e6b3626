from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from layer_cases import CASES, NAMES, NODES, WIDTH, both, check_equal, inputs, mlp, results
from torch import nn

import headrace.pyg
from headrace.pyg.layer import Fast


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ends in PyG's own path fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("PyG's path was taken")

    rows_for = Fast.rows_for

    def rows(self: Any, *arguments: Any, **options: Any) -> Any:
        found = rows_for(self, *arguments, **options)
        if isinstance(self, Fast) and found is None:
            refuse()
        return found

    monkeypatch.setattr(Fast, "rows_for", rows)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(("kind", "name", "make", "beside"), CASES, ids=NAMES)
def test_outputs_and_gradients_equal_pygs(kind: str, name: str, make: Callable[[], nn.Module], beside: tuple[str, ...]) -> None:
    given = inputs(kind)
    training = "gat" not in name.lower() or "edge_attr" in beside  # then dropout draws as PyG's does
    theirs, ours = both(make, training=training)
    with torch.no_grad():
        for layer in (theirs, ours):  # sizes that are not known yet
            torch.manual_seed(3)
            layer(given["x"], given["edge_index"], *[given[each] for each in beside])
    expected, found = results(theirs, given, beside), results(ours, given, beside)
    check_equal(expected, found)


@pytest.mark.parametrize(("kind", "name", "make", "beside"), CASES[::3], ids=NAMES[::3])
def test_graphs_without_edges(kind: str, name: str, make: Callable[[], nn.Module], beside: tuple[str, ...]) -> None:
    given = inputs(kind, edges=0)
    theirs, ours = both(make)
    try:
        expected = results(theirs, given, beside)
    except (IndexError, RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            results(ours, given, beside)
        return
    check_equal(expected, results(ours, given, beside))


TWICE = [i for i, name in enumerate(NAMES) if "lazy" not in name and "rgcn" not in name][::2]  # RGCN adds to floats


@pytest.mark.parametrize(("kind", "name", "make", "beside"), [CASES[i] for i in TWICE], ids=[NAMES[i] for i in TWICE])
def test_second_gradients(kind: str, name: str, make: Callable[[], nn.Module], beside: tuple[str, ...]) -> None:
    theirs, ours = both(make)
    penalties = []
    given = inputs(kind)
    given = {key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value for key, value in given.items()}
    for conv in (theirs.double(), ours.double()):
        x = tuple(part.double() for part in given["x"]) if kind == "bipartite" else given["x"].double()
        lead = (x[0] if kind == "bipartite" else x).clone().requires_grad_()
        out = conv((lead, x[1]) if kind == "bipartite" else lead, given["edge_index"], *[given[each] for each in beside])
        (first,) = torch.autograd.grad(out.square().sum(), lead, create_graph=True)
        first.square().sum().backward()
        penalties.append([lead.grad, *(p.grad for p in conv.parameters())])
    for expected, found in zip(*penalties, strict=True):
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    given = inputs("plain")
    for make in (lambda: pyg.SAGEConv(WIDTH, 5), lambda: pyg.GCNConv(WIDTH, 5), lambda: pyg.GATConv(WIDTH, 4, heads=2)):
        theirs, ours = (conv.to(dtype) for conv in both(make))
        expected, found = theirs(given["x"].to(dtype), given["edge_index"]), ours(given["x"].to(dtype), given["edge_index"])
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.05 if dtype == torch.bfloat16 else 1e-8, atol=0.1)


def test_autocast_gives_pygs_types() -> None:
    given = inputs("plain")
    for make in (lambda: pyg.SAGEConv(WIDTH, 5), lambda: pyg.GATConv(WIDTH, 4), lambda: pyg.TransformerConv(WIDTH, 4)):
        theirs, ours = both(make)
        with torch.autocast("cpu", torch.bfloat16):
            expected, found = theirs(given["x"], given["edge_index"]), ours(given["x"], given["edge_index"])
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
        found.sum().backward()


def test_equal_values_share_the_gradient_of_a_maximum() -> None:
    given = inputs("plain")
    given["x"] = given["x"].relu().round()  # many of a row are equal, many are zero
    for make, beside in (
        (lambda: pyg.SAGEConv(WIDTH, 5, aggr="max"), ()),
        (lambda: pyg.GraphConv(WIDTH, 5, aggr="max"), ("edge_weight",)),
    ):
        theirs, ours = both(make)
        given["edge_weight"] = torch.ones_like(given["edge_weight"])
        check_equal(results(theirs, given, beside), results(ours, given, beside))


def test_dropout_of_attention_is_seeded_and_drops_its_share() -> None:
    _, ours = both(lambda: pyg.GATConv(WIDTH, 4, heads=2, dropout=0.5), training=True)
    given = inputs("plain", edges=4000)
    torch.manual_seed(5)
    first = ours(given["x"], given["edge_index"])
    torch.manual_seed(5)
    assert torch.equal(ours(given["x"], given["edge_index"]), first)
    assert not torch.equal(ours(given["x"], given["edge_index"]), first)
    plain = ours.eval()(given["x"], given["edge_index"])
    ours.train()
    mean = torch.stack([ours(given["x"], given["edge_index"]) for _ in range(400)]).mean(0)
    rows = slice(0, NODES - 5)  # the others have themselves alone
    torch.testing.assert_close(mean[rows], plain[rows], rtol=0.2, atol=0.08)


def test_gradients_of_the_first_rows_alone() -> None:
    """The loss of a sampled batch: whole tails of the gradients are zero."""
    torch.manual_seed(0)
    nodes, edges = 2000, 9000
    edge_index = torch.stack([torch.randint(0, nodes, (edges,)), torch.randint(0, nodes // 2, (edges,))])
    x = torch.randn(nodes, 12)
    for make in (
        lambda: pyg.GraphSAGE(12, 16, 3, 4),
        lambda: pyg.GCN(12, 16, 3, 4),
        lambda: pyg.GAT(12, 16, 3, 4),
        lambda: pyg.GIN(12, 16, 2, 4),
        lambda: pyg.GraphSAGE(12, 16, 2, 4, aggr="max"),
    ):
        theirs = make().eval()
        ours = make().eval()
        ours.load_state_dict(theirs.state_dict())
        headrace.pyg.accelerate(ours)
        gradients = []
        for model in (theirs, ours):
            lead = x.clone().requires_grad_()
            model(lead, edge_index)[:70].square().sum().backward()
            gradients.append([lead.grad, *(p.grad for p in model.parameters())])
        for expected, found in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_mlp_is_the_users_own() -> None:
    network = mlp()
    assert headrace.pyg.GINConv(network).nn is network
