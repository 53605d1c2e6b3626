"""Small graphs, which no kernel sees: PyG's numbers, by PyG's operations, without PyG's `propagate` where nothing asks for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from layer_cases import CASES, NAMES, NODES, WIDTH, both, inputs, results
from torch import Tensor, nn

from headrace.graph.topology.edge_rows import kept_with
from headrace.pyg import accelerate
from headrace.pyg.accelerate import LAYERS


@pytest.fixture(autouse=True)
def _every_graph_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in LAYERS:
        monkeypatch.setattr(layer, "least", 1 << 60)


def without_propagate(conv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a call fail that ends in PyG's own `propagate` or `edge_updater`."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("PyG's own steps were taken")

    monkeypatch.setattr(conv.pyg, "propagate", refuse)
    monkeypatch.setattr(conv.pyg, "edge_updater", refuse)


@pytest.mark.parametrize(("kind", "name", "make", "beside"), CASES, ids=NAMES)
def test_small_graphs_have_pygs_numbers(
    kind: str, name: str, make: Callable[[], nn.Module], beside: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs(kind)
    theirs, ours = both(make, training=True)
    with torch.no_grad():
        for layer in (theirs, ours):  # sizes that are not known yet
            torch.manual_seed(3)
            layer(given["x"], given["edge_index"], *[given[each] for each in beside])
    expected = results(theirs, given, beside)
    if not name.startswith("rgcn"):  # which takes PyG's as it is
        without_propagate(ours, monkeypatch)
    found = results(ours, given, beside)
    assert expected.keys() == found.keys()
    assert torch.equal(found["out"], expected["out"])
    for key, value in expected.items():  # gradients are added up in another order
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("make", [lambda: pyg.GCNConv(WIDTH, 4), lambda: pyg.GATConv(WIDTH, 4), lambda: pyg.GATv2Conv(WIDTH, 4)])
def test_what_is_kept_of_small_graphs_follows_their_edges(make: Callable[[], nn.Module]) -> None:
    given = inputs("plain")
    theirs, ours = both(make)
    for nodes in (NODES, NODES + 3):  # the same edges among more nodes
        x = torch.randn(nodes, WIDTH)
        assert torch.equal(ours(x, given["edge_index"]), theirs(x, given["edge_index"]))
    given["edge_index"][0, :20] = 7
    assert torch.equal(ours(given["x"], given["edge_index"]), theirs(given["x"], given["edge_index"]))
    with torch.inference_mode():
        fresh = given["edge_index"].clone()
        assert torch.equal(ours(given["x"], fresh), theirs(given["x"], fresh))
    ours(given["x"], given["edge_index"]).sum().backward()


def test_what_is_kept_of_a_tensor_is_made_once_and_goes_with_a_change() -> None:
    tensor, made = torch.zeros(3), []
    for _ in range(2):
        assert kept_with(tensor, "length", lambda: made.append(1) or len(made)) == 1
    tensor.add_(1)
    assert kept_with(tensor, "length", lambda: made.append(1) or len(made)) == 2


def test_small_graphs_whose_ids_are_no_rows_have_pygs_errors() -> None:
    given = inputs("plain")
    for row, make in (
        (0, lambda: pyg.SAGEConv(WIDTH, 4)),
        (1, lambda: pyg.SAGEConv(WIDTH, 4)),
        (1, lambda: pyg.GINConv(nn.Identity())),
    ):
        for wrong in (NODES, -1):
            edge_index = given["edge_index"].clone()
            edge_index[row, 3] = wrong
            theirs, ours = both(make)
            with pytest.raises((IndexError, RuntimeError, ValueError)) as expected:
                theirs(given["x"], edge_index)
            with pytest.raises(expected.type) as found:
                ours(given["x"], edge_index)
            assert str(found.value) == str(expected.value)


def test_hooks_see_the_steps_of_small_graphs() -> None:
    given, seen = inputs("plain"), []
    conv = accelerate(model := pyg.SAGEConv(WIDTH, 4)) and model
    conv.register_message_forward_hook(lambda *_: seen.append("message"))
    conv.register_propagate_forward_pre_hook(lambda *_: seen.append("propagate"))
    conv(given["x"], given["edge_index"])
    assert sorted(seen) == ["message", "propagate"]


def test_sizes_of_small_graphs_are_pygs() -> None:
    """A pair whose second part is not given, with the sizes said, is PyG's own affair."""
    given = inputs("bipartite")
    theirs, ours = both(lambda: pyg.SAGEConv((WIDTH, WIDTH), 4))
    pair: tuple[Tensor, None] = (given["x"][0], None)
    size = len(given["x"][0]), NODES
    assert torch.equal(ours(pair, given["edge_index"], size), theirs(pair, given["edge_index"], size))
