"""Each cell against its equations in plain torch, with PyG's layers and the same weights, over three snapshots."""

import copy

import pytest
import torch
import torch.nn.functional as F

import headrace as hr
from headrace.nn.neighbor_sum import counting

pyg = pytest.importorskip("torch_geometric.nn")


def graphs(weighted=True):
    torch.manual_seed(1)
    made = []
    for edges in (30, 0, 45):  # one snapshot is empty; loops and repeated edges come up
        src, dst = torch.randint(0, 12, (2, edges))
        made.append(hr.Graph.from_edges(src, dst, 13, weight=torch.rand(edges) + 0.1 if weighted else None))
    return made


def loaded(layer, ours):
    """The layer with our weights: the same parameters, so that gradients can be compared."""
    for name, weight in ours.named_parameters():
        owner, _, own = name.rpartition(".")
        assert getattr(layer.get_submodule(owner), own).shape == weight.shape
        setattr(layer.get_submodule(owner), own, weight)
    return layer


def edges_of(graph):
    return graph.edge_index(), graph.weight


def by_gate(cell, names, make):
    return {name: loaded(make(), getattr(cell, name)) for name in names}


def compare(cell, reference, width=3, weighted=True):
    xs = [torch.randn(13, width) for _ in range(3)]
    state = None
    for x, graph in zip(xs, graphs(weighted), strict=True):
        state = cell(x, graph, state)
    expected = reference(xs, graphs(weighted))
    torch.testing.assert_close(cell.rows(state), expected, rtol=1e-5, atol=1e-5)
    weights, direction = dict(cell.named_parameters()), torch.randn_like(expected)
    got, wanted = (
        torch.autograd.grad((rows * direction).sum(), weights.values(), allow_unused=True, materialize_grads=True)
        for rows in (cell.rows(state), expected)
    )
    for name, a, b in zip(weights, got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"gradient of {name}: {text}")
    assert sum(bool(gradient.any()) for gradient in wanted) > len(weights) / 2  # the check of gradients is not an empty one


def tgcn_step(cell, convs, x, graph, hidden):
    made = {gate: convs[f"conv_{gate}"](x, *edges_of(graph)) for gate in "zrh"}
    z = torch.sigmoid(cell.linear_z(torch.cat([made["z"], hidden], 1)))
    r = torch.sigmoid(cell.linear_r(torch.cat([made["r"], hidden], 1)))
    candidate = torch.tanh(cell.linear_h(torch.cat([made["h"], hidden * r], 1)))
    return z * hidden + (1 - z) * candidate


def test_tgcn_has_its_equations_and_gradients():
    cell = hr.nn.TGCN(3, 6)

    def reference(xs, sequence):
        convs = by_gate(cell, ["conv_z", "conv_r", "conv_h"], lambda: pyg.GCNConv(3, 6))
        hidden = torch.zeros(13, 6)
        for x, graph in zip(xs, sequence, strict=True):
            hidden = tgcn_step(cell, convs, x, graph, hidden)
        return hidden

    compare(cell, reference)
    plain = copy.deepcopy(cell).double()
    x, graph = torch.randn(13, 3).double(), graphs()[0]
    read = torch.randn(13, 6).double()
    weights = list(plain.parameters())
    got = torch.autograd.grad((plain.rows(plain(x, graph)) * read).sum(), weights, allow_unused=True)
    convs = {f"conv_{gate}": pyg.GCNConv(3, 6).double() for gate in "zrh"}
    for name, conv in convs.items():
        conv.lin.weight, conv.bias = getattr(plain, name).lin.weight, getattr(plain, name).bias
    expected = tgcn_step(
        plain, convs, x, hr.Graph(graph.indptr, graph.indices, weight=graph.weight.double()), torch.zeros(13, 6).double()
    )
    wanted = torch.autograd.grad((expected * read).sum(), weights, allow_unused=True)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(
            torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b, rtol=1e-6, atol=1e-9, check_dtype=False
        )


@pytest.mark.parametrize("recurrent", [False, True])
def test_a3tgcn_attends_to_every_snapshot(recurrent):
    cell = hr.nn.A3TGCN(3, 6, periods=3, recurrent=recurrent)

    def reference(xs, sequence):
        convs = by_gate(cell, ["conv_z", "conv_r", "conv_h"], lambda: pyg.GCNConv(3, 6))
        hidden, out = torch.zeros(13, 6), 0
        for x, graph, share in zip(xs, sequence, cell.attention.softmax(0), strict=True):
            new = tgcn_step(cell, convs, x, graph, hidden)
            out = out + share * new
            hidden = new if recurrent else hidden
        return out

    compare(cell, reference)
    with pytest.raises(ValueError, match="one more"):
        state = cell.start(13, torch.zeros(1))
        for graph in graphs() + graphs()[:1]:
            state = cell(torch.randn(13, 3), graph, state)


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_gconv_gru_has_its_equations(terms):
    cell = hr.nn.GConvGRU(3, 6, K=terms)

    def reference(xs, sequence):
        of_x = by_gate(cell, [f"conv_x_{gate}" for gate in "zrh"], lambda: pyg.ChebConv(3, 6, terms))
        of_h = by_gate(cell, [f"conv_h_{gate}" for gate in "zrh"], lambda: pyg.ChebConv(6, 6, terms))
        hidden = torch.zeros(13, 6)
        for x, graph in zip(xs, sequence, strict=True):
            z, r = (
                torch.sigmoid(of_x[f"conv_x_{g}"](x, *edges_of(graph)) + of_h[f"conv_h_{g}"](hidden, *edges_of(graph)))
                for g in "zr"
            )
            new = torch.tanh(of_x["conv_x_h"](x, *edges_of(graph)) + of_h["conv_h_h"](hidden * r, *edges_of(graph)))
            hidden = z * hidden + (1 - z) * new
        return hidden

    compare(cell, reference)


def lstm(gates, memory):
    memory = torch.sigmoid(gates["f"]) * memory + torch.sigmoid(gates["i"]) * torch.tanh(gates["c"])
    return torch.sigmoid(gates["o"]) * torch.tanh(memory), memory


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_gclstm_has_its_equations(terms):
    cell = hr.nn.GCLSTM(3, 6, K=terms)

    def reference(xs, sequence):
        convs = by_gate(cell, [f"conv_{gate}" for gate in "ifco"], lambda: pyg.ChebConv(6, 6, terms))
        hidden = memory = torch.zeros(13, 6)
        for x, graph in zip(xs, sequence, strict=True):
            gates = {
                g: x @ getattr(cell, f"W_{g}") + convs[f"conv_{g}"](hidden, *edges_of(graph)) + getattr(cell, f"b_{g}")
                for g in "ifco"
            }
            hidden, memory = lstm(gates, memory)
        return hidden

    compare(cell, reference)


@pytest.mark.parametrize("bases", [None, 3])
def test_lrgcn_has_its_equations(bases):
    cell = hr.nn.LRGCN(3, 6, num_bases=bases)

    def reference(xs, sequence):
        of_x = by_gate(cell, [f"conv_x_{gate}" for gate in "ifco"], lambda: pyg.RGCNConv(3, 6, 2, num_bases=bases))
        of_h = by_gate(cell, [f"conv_h_{gate}" for gate in "ifco"], lambda: pyg.RGCNConv(6, 6, 2, num_bases=bases))
        hidden = memory = torch.zeros(13, 6)
        for x, graph in zip(xs, sequence, strict=True):
            forward = graph.edge_index()
            both = torch.cat([forward, forward.flip(0)], 1), torch.arange(2).repeat_interleave(forward.shape[1])
            gates = {g: of_x[f"conv_x_{g}"](x, *both) + of_h[f"conv_h_{g}"](hidden, *both) for g in "ifco"}
            hidden, memory = lstm(gates, memory)
        return hidden

    compare(cell, reference, weighted=False)


@pytest.mark.parametrize("skip", [False, True])
def test_wdgcn_is_a_convolution_before_an_lstm(skip):
    cell = hr.nn.WDGCN(3, 6, skip=skip)

    def reference(xs, sequence):
        conv = loaded(pyg.GCNConv(3, 6), cell.conv)
        state = torch.zeros(13, 6), torch.zeros(13, 6)
        for x, graph in zip(xs, sequence, strict=True):
            rows = conv(x, *edges_of(graph)).relu()
            state = cell.lstm(torch.cat([x, rows], 1) if skip else rows, state)
        return state[0]

    compare(cell, reference)


def test_mpnn_lstm_has_its_equations():
    cell = hr.nn.MPNNLSTM(3, 8)

    def reference(xs, sequence):
        one, two = loaded(pyg.GCNConv(3, 4), cell.conv_1), loaded(pyg.GCNConv(4, 4), cell.conv_2)
        first = second = (torch.zeros(13, 4), torch.zeros(13, 4))
        for x, graph in zip(xs, sequence, strict=True):
            a = F.batch_norm(one(x, *edges_of(graph)).relu(), None, None, *cell.norm_1.parameters(), training=True)
            b = F.batch_norm(two(a, *edges_of(graph)).relu(), None, None, *cell.norm_2.parameters(), training=True)
            first = cell.lstm_1(torch.cat([a, b], 1), first)
            second = cell.lstm_2(first[0], second)
        return torch.cat([first[0], second[0]], 1)

    compare(cell, reference)


@pytest.mark.parametrize("kind", ["O", "H"])
def test_evolve_gcn_carries_its_weights(kind):
    cell = (hr.nn.EvolveGCNO if kind == "O" else hr.nn.EvolveGCNH)(3)

    def reference(xs, sequence):
        weight = cell.initial_weight
        for x, graph in zip(xs, sequence, strict=True):
            read = weight
            if kind == "H":
                score = torch.tanh(x @ cell.score[0] / cell.score.norm())
                best = score.topk(3).indices
                read = x[best] * score[best, None]
            _, new = cell.recurrent_layer(read[None], weight[None].contiguous())
            weight = new[0]
            conv = pyg.GCNConv(3, 3, bias=False)
            conv.lin.weight = torch.nn.Parameter(torch.eye(3))
            out = conv(x, *edges_of(graph)) @ weight
        return out

    compare(cell, reference)


def test_all_gates_share_a_sum():
    x, graph = torch.randn(13, 3), graphs()[0]
    expected = {"TGCN": 1, "WDGCN": 1, "GConvGRU": 3, "GCLSTM": 1, "LRGCN": 4, "MPNNLSTM": 2, "EvolveGCNO": 1, "EvolveGCNH": 1}
    for name, sums in expected.items():
        cell = getattr(hr.nn, name)(*([3] if name.startswith("Evolve") else [3, 6]))
        with counting() as count:
            cell(x, graph)
        assert (name, count.sums) == (name, sums)
        assert sum(operator.kind == "graph" for operator in cell.operators) == sums
