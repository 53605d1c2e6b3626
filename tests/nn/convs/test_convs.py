"""Every layer against PyG's of the same name: parameters, results and gradients, on all that a layer runs on."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import headrace as hr
from headrace.nn import GATConv, GCNConv, GINConv, SAGEConv
from headrace.sample import Block, NeighborSampler

pytestmark = pytest.mark.usefixtures("one_thread")
IN, OUT = 6, 5


def random_edges(nodes, edges, seed, loops=False):
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(0, nodes, (2, edges), generator=generator)
    if not loops:
        keep = source != target
        source, target = source[keep], target[keep]
    return torch.stack([source, target])


GRAPHS = {  # edge_index, number of nodes
    "ordinary": (random_edges(40, 300, 0), 43),  # with multi-edges, and three isolated nodes at the end
    "self loops": (torch.cat([random_edges(20, 60, 1), torch.tensor([[3, 5, 19], [3, 5, 19]])], 1), 20),
    "several loops": (torch.tensor([[0, 1, 1, 1, 2, 0, 2, 2], [1, 1, 1, 1, 0, 2, 2, 2]]), 4),
    "multi-edges": (torch.tensor([[0, 0, 0, 1, 1, 2], [1, 1, 1, 0, 0, 1]]), 3),
    "only loops": (torch.tensor([[0, 1, 1], [0, 1, 1]]), 3),
    "no edges": (torch.zeros(2, 0, dtype=torch.int64), 4),
    "no nodes": (torch.zeros(2, 0, dtype=torch.int64), 0),
    "one node": (torch.zeros(2, 0, dtype=torch.int64), 1),
    "one node with a loop": (torch.zeros(2, 1, dtype=torch.int64), 1),
}


def network(width=7):
    return nn.Sequential(nn.Linear(IN, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, OUT))


class Cubed(nn.Module):
    """A network that begins with no linear map."""

    def __init__(self):
        super().__init__()
        self.after = nn.Linear(IN, OUT)

    def forward(self, x):
        return self.after(0.1 * x**3)


SAGE = {
    "mean": {},
    "sum": {"aggr": "sum"},
    "add": {"aggr": "add"},
    "max": {"aggr": "max"},
    "normalize": {"normalize": True},
    "no root": {"root_weight": False},
    "no root, max": {"root_weight": False, "aggr": "max"},
    "project": {"project": True},
    "project, max": {"project": True, "aggr": "max"},
    "no bias": {"bias": False},
    "no bias, no root": {"bias": False, "root_weight": False},
}
GCN = {
    "plain": {},
    "no loops": {"add_self_loops": False},
    "no norm": {"normalize": False, "add_self_loops": False},
    "no bias": {"bias": False},
}
GIN = {
    "network": (network, {}),
    "wide network": (lambda: network(30), {}),
    "eps": (network, {"eps": 0.7}),
    "trained eps": (network, {"eps": -0.3, "train_eps": True}),
    "a linear map": (lambda: nn.Linear(IN, OUT), {"train_eps": True}),
    "a linear map without bias": (lambda: nn.Linear(IN, 3, bias=False), {}),
    "a wide linear map": (lambda: nn.Linear(IN, 40), {}),
    "a module of one's own": (Cubed, {"eps": 0.5}),
    "relu first": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(IN, OUT)), {}),
}
GAT = {
    "plain": {},
    "heads": {"heads": 3},
    "heads, mean": {"heads": 3, "concat": False},
    "slope": {"heads": 2, "negative_slope": 0.5},
    "no loops": {"heads": 2, "add_self_loops": False},
    "no bias": {"bias": False},
    "residual": {"heads": 2, "residual": True},
    "residual, mean": {"heads": 2, "residual": True, "concat": False},
}


def layers():
    """Names, and functions that make ours and PyG's."""
    for name, options in SAGE.items():
        yield f"sage {name}", lambda o=options: (SAGEConv(IN, OUT, **o), pyg.SAGEConv(IN, OUT, **o))
    for name, options in GCN.items():
        yield f"gcn {name}", lambda o=options: (GCNConv(IN, OUT, **o), pyg.GCNConv(IN, OUT, **o))
    for name, (make, options) in GIN.items():
        yield f"gin {name}", lambda m=make, o=options: (GINConv(m(), **o), pyg.GINConv(m(), **o))
    for name, options in GAT.items():
        yield f"gat {name}", lambda o=options: (GATConv(IN, OUT, **o), pyg.GATConv(IN, OUT, **o))
        yield f"gatv2 {name}", lambda o=options: (GATConv(IN, OUT, v2=True, **o), pyg.GATv2Conv(IN, OUT, **o))
    shared = {"heads": 2, "share_weights": True}
    yield "gatv2 shared", lambda: (GATConv(IN, OUT, v2=True, **shared), pyg.GATv2Conv(IN, OUT, **shared))
    yield "sage wide", lambda: (SAGEConv(IN, 40), pyg.SAGEConv(IN, 40))
    yield "gcn narrow", lambda: (GCNConv(IN, 1), pyg.GCNConv(IN, 1))
    yield "gcn wide", lambda: (GCNConv(IN, 40), pyg.GCNConv(IN, 40))


LAYERS = dict(layers())
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
every_graph = pytest.mark.parametrize("name", GRAPHS)


def filled(pair):
    """The two with one set of parameters, none of them 0, each having loaded the other's."""
    ours, theirs = pair
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


def results(layer, x, *where, take=None, pair=None, rows=None, cast=False):
    """What `layer(x, *where)` gives, the gradient of x (or of both of a pair) and of every parameter.

    The layer is given the rows `take` of x, with the first `pair` of them as targets, and of what it gives `rows` are looked at.
    """
    leaves = tuple(part.clone().requires_grad_() for part in ((x,) if isinstance(x, torch.Tensor) else x))
    given = leaves if isinstance(x, tuple) else leaves[0] if take is None else leaves[0][take]
    layer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
        out = layer(given if pair is None else (given, given[:pair]), *where)
    out = out if rows is None else out[rows]
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype))
    found = {"out": out.detach()}
    for i, part in enumerate(leaves):
        found[f"x{i}"] = torch.zeros_like(part) if part.grad is None else part.grad
    for name, parameter in layer.named_parameters():
        found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return found


def assert_same(ours, theirs, where="", tolerance=1e-5):
    assert ours.keys() == theirs.keys()
    for name, truth in theirs.items():
        most = float(truth.abs().max()) if truth.numel() else 0.0
        torch.testing.assert_close(
            ours[name], truth, rtol=tolerance, atol=tolerance * max(most, 1), msg=lambda text, n=name: f"{n}, {where}: {text}"
        )


def rows_of(nodes, seed=2):
    return torch.randn(nodes, IN, generator=torch.Generator().manual_seed(seed))


def sampled(name="ordinary", hops=1):
    """A graph, the widest block of a sample of it, and the ids of the block's sources."""
    edges, nodes = GRAPHS[name]
    graph = hr.Graph.from_edges(*edges, nodes)
    sample = NeighborSampler(graph, [3, 2][:hops], seed=1).sample(torch.arange(nodes - 6, nodes))
    block = sample.blocks[-1]
    assert block.num_dst < block.num_src
    return graph, block, sample.nodes[: block.num_src]


def edges_of(block):
    """The block as PyG's bipartite edge_index."""
    targets = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
    return torch.stack([block.indices.long(), targets])


# ---- the same on everything that a layer runs on


@every_layer
def test_on_an_edge_index_and_on_a_graph_equals_pyg(make):
    ours, theirs = filled(make())
    for name, (edges, nodes) in GRAPHS.items():
        x, graph = rows_of(nodes), hr.Graph.from_edges(*edges, nodes)
        theirs.load_state_dict(ours.state_dict())  # a batch norm's statistics
        ours.train(nodes > 1), theirs.train(nodes > 1)  # which it makes of two rows or more
        truth = results(theirs, x, edges)
        assert_same(results(ours, x, edges), truth, name)
        assert_same(results(ours, x, graph), truth, name)
        assert_same(results(ours, x, graph), truth, name)  # what the graph kept changes nothing


@every_layer
@pytest.mark.parametrize("hops", [1, 2])
def test_on_a_sampled_block_equals_pyg_on_its_bipartite_edges(make, hops):
    ours, theirs = filled(make())
    for name in ("ordinary", "self loops"):
        _, block, ids = sampled(name, hops)
        x = rows_of(43)[ids]
        if isinstance(ours, GCNConv):  # PyG's takes no pair: it computes all sources
            truth = results(theirs, x, edges_of(block), rows=slice(block.num_dst))
        else:
            truth = results(theirs, x, edges_of(block), pair=block.num_dst)
        assert_same(results(ours, x, block), truth, name)


@every_layer
def test_on_rows_of_a_graph_equals_the_slice(make):
    ours, _ = filled(make())
    ours.eval()
    for edges, nodes in GRAPHS.values():
        x, graph = rows_of(nodes), hr.Graph.from_edges(*edges, nodes)
        for share in ((0, 1), (0, 0.5), (0.3, 0.8), (0.5, 1), (0.5, 0.5)):
            begin, end = (round(part * nodes) for part in share)
            with torch.no_grad():
                whole, part = ours(x, graph), ours(x, graph.rows(begin, end))
            assert part.shape == (end - begin, whole.shape[1])
            torch.testing.assert_close(part, whole[begin:end], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        *("sage mean", "sage max", "gcn plain", "gcn wide", "gin a linear map"),
        *("gat heads", "gatv2 heads", "gat no loops", "gatv2 shared"),
    ],
)
def test_the_gradient_of_rows_of_a_graph_is_that_of_the_slice(kind):
    edges, nodes = GRAPHS["ordinary"]
    ours, _ = filled(LAYERS[kind]())
    x, graph = rows_of(nodes), hr.Graph.from_edges(*edges, nodes)
    for begin, end in ((0, 20), (13, 35), (20, 43)):
        truth = results(ours, x, graph, rows=slice(begin, end))
        assert_same(results(ours, x, graph.rows(begin, end)), truth)


@every_layer
def test_rows_beyond_the_sources_change_nothing(make):
    edges, nodes = GRAPHS["self loops"]
    ours, _ = filled(make())
    ours.eval()
    graph = hr.Graph.from_edges(*edges, nodes)
    longer = rows_of(nodes + 7)
    truth = results(ours, longer, graph, take=slice(nodes))
    assert_same(results(ours, longer, graph), truth)
    with torch.no_grad():
        torch.testing.assert_close(ours(longer, graph.rows(8, 15)), truth["out"][8:15], rtol=1e-5, atol=1e-5)


# ---- pairs of widths


PAIRS = {
    "sage": lambda: (SAGEConv((IN, 4), OUT), pyg.SAGEConv((IN, 4), OUT)),
    "sage max": lambda: (SAGEConv((IN, 4), OUT, aggr="max"), pyg.SAGEConv((IN, 4), OUT, aggr="max")),
    "sage project": lambda: (SAGEConv((IN, 4), OUT, project=True), pyg.SAGEConv((IN, 4), OUT, project=True)),
    "sage wide": lambda: (SAGEConv((IN, 4), 40), pyg.SAGEConv((IN, 4), 40)),
    "gat": lambda: (GATConv((IN, 4), OUT, heads=2), pyg.GATConv((IN, 4), OUT, heads=2)),
    "gat residual": lambda: (GATConv((IN, 4), OUT, residual=True), pyg.GATConv((IN, 4), OUT, residual=True)),
    "gatv2": lambda: (GATConv((IN, 4), OUT, heads=2, v2=True), pyg.GATv2Conv((IN, 4), OUT, heads=2)),
    "gatv2 residual": lambda: (GATConv((IN, 4), OUT, residual=True, v2=True), pyg.GATv2Conv((IN, 4), OUT, residual=True)),
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("num_dst", [4, 12, 43])
def test_sources_and_targets_of_two_widths_equal_pyg(make, num_dst):
    edges, nodes = GRAPHS["ordinary"]
    edges = edges[:, edges[1] < num_dst]
    ours, theirs = filled(make())
    x = rows_of(nodes), rows_of(num_dst, 5)[:, :4].contiguous()
    truth = results(theirs, x, edges)
    assert_same(results(ours, x, edges), truth)
    block = hr.Graph.from_edges(*edges, nodes).rows(0, num_dst)
    assert_same(results(ours, x, Block(block.indptr, block.indices, nodes)), truth)


@pytest.mark.parametrize(
    "kind", ["sage mean", "sage max", "gin network", "gat heads", "gat no loops", "gatv2 heads", "gatv2 shared"]
)
@pytest.mark.parametrize("num_src", [10, 43])
def test_sources_and_targets_of_one_width_equal_pyg(kind, num_src):
    edges, _ = GRAPHS["ordinary"]
    num_dst = 20
    edges = edges[:, (edges[0] < num_src) & (edges[1] < num_dst)]
    ours, theirs = filled(LAYERS[kind]())
    x = rows_of(num_src), rows_of(num_dst, 5)
    if num_src < num_dst and getattr(ours, "add_self_loops", False):
        with pytest.raises(ValueError, match="self_loops needs a row of x for each of the 20 rows"):
            ours(x, edges)  # PyG leaves the targets that are no sources without a loop
        return
    truth = results(theirs, x, edges)
    assert_same(results(ours, x, edges), truth)


@pytest.mark.parametrize("v2", [False, True])
def test_attention_of_two_maps_on_one_input_equals_pyg(v2):
    edges, nodes = GRAPHS["self loops"]
    theirs = pyg.GATv2Conv((IN, IN), OUT, heads=2) if v2 else pyg.GATConv((IN, IN), OUT, heads=2)
    ours, theirs = filled((GATConv((IN, IN), OUT, heads=2, v2=v2), theirs))
    x = rows_of(nodes)
    truth = results(theirs, x, edges)
    assert_same(results(ours, x, edges), truth)


def test_hooks_of_a_network_are_run():
    """A spectral norm is one: it sets the weight when its module is called."""
    edges, nodes = GRAPHS["ordinary"]
    for make in (lambda: nn.Linear(IN, 2), lambda: nn.Sequential(nn.Linear(IN, 2), nn.ReLU())):
        for hooked in (lambda network: network, lambda network: network[0] if isinstance(network, nn.Sequential) else network):
            network, seen = make(), []
            hooked(network).register_forward_hook(lambda *_, seen=seen: seen.append(1))
            GINConv(network)(rows_of(nodes), edges)
            assert seen == [1]


# ---- weights of edges, and GCN's norms


@every_graph
@pytest.mark.parametrize("options", GCN.values(), ids=GCN.keys())
@pytest.mark.parametrize("improved", [False, True])
def test_weighted_gcn_equals_pyg(name, options, improved):
    edges, nodes = GRAPHS[name]
    weight = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(4)) + 0.1
    ours, theirs = filled((GCNConv(IN, OUT, improved, **options), pyg.GCNConv(IN, OUT, improved, **options)))
    x = rows_of(nodes)
    truth = results(theirs, x, edges, weight)
    assert_same(results(ours, x, edges, weight), truth)
    graph = hr.Graph.from_edges(*edges, nodes, weight=weight)
    assert_same(results(ours, x, graph), truth)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, graph.rows(nodes // 2, nodes)), ours(x, graph)[nodes // 2 :], rtol=1e-5, atol=1e-5)


@every_graph
def test_improved_gcn_gives_every_loop_the_weight_2(name):
    """PyG loses the 2 where there are no weights, so it is given ones; on an unweighted graph a loop that is there is no other."""
    edges, nodes = GRAPHS[name]
    ours, theirs = filled((GCNConv(IN, OUT, improved=True), pyg.GCNConv(IN, OUT, improved=True)))
    x, proper = rows_of(nodes), edges[:, edges[0] != edges[1]]
    truth = results(theirs, x, proper, torch.ones(proper.shape[1]))
    assert_same(results(ours, x, edges), truth)
    assert_same(results(ours, x, hr.Graph.from_edges(*edges, nodes)), truth)


def test_norms_of_one_graph_are_not_those_of_another_layer():
    """Each kind of norm is kept under its own name."""
    edges, nodes = GRAPHS["self loops"]
    graph, x = hr.Graph.from_edges(*edges, nodes), rows_of(nodes)
    for options in ({}, {"improved": True}, {"add_self_loops": False}, {"normalize": False}, {}):
        layer = GCNConv(IN, OUT, **options)
        with torch.no_grad():
            assert torch.equal(layer(x, graph), layer(x, hr.Graph.from_edges(*edges, nodes)))
            once = layer.double()(x.double(), graph)
            assert torch.equal(once, layer(x.double(), hr.Graph.from_edges(*edges, nodes)))


def test_cached_is_taken_as_the_hint_that_it_is():
    """PyG's then keeps the first graph's norms whatever it is given next; here a graph keeps its own."""
    cached, plain = GCNConv(IN, OUT, cached=True), GCNConv(IN, OUT)
    cached.load_state_dict(plain.state_dict())
    for edges, nodes in GRAPHS.values():
        assert torch.equal(cached(rows_of(nodes), edges), plain(rows_of(nodes), edges))


def test_weights_that_want_a_gradient_are_refused():
    edges, nodes = GRAPHS["ordinary"]
    with pytest.raises(ValueError, match="edge_weight requires a gradient"):
        GCNConv(IN, OUT)(rows_of(nodes), edges, torch.ones(edges.shape[1], requires_grad=True))


# ---- GCN on samples of a graph


def with_degrees(graph, sample):
    """The block of a sample of one hop that knows the degrees in the whole graph, and the ids of its sources."""
    block, ids = sample.blocks[0], sample.nodes.long()
    return Block(block.indptr, block.indices, block.num_src, graph.degrees(loops=False)[ids]), ids


@pytest.mark.parametrize("name", ["ordinary", "self loops", "several loops", "multi-edges", "only loops", "no edges"])
@pytest.mark.parametrize("improved", [False, True])
def test_gcn_on_all_neighbors_equals_the_rows_of_the_graph(name, improved):
    edges, nodes = GRAPHS[name]
    graph, x = hr.Graph.from_edges(*edges, nodes), rows_of(nodes)
    ours, _ = filled((GCNConv(IN, OUT, improved), pyg.GCNConv(IN, OUT, improved)))
    seeds = torch.arange(nodes)[::2]
    sample = NeighborSampler(graph, [-1]).sample(seeds)
    block, ids = with_degrees(graph, sample)
    truth = results(ours, x, graph, rows=seeds)
    assert_same(results(ours, x, block, take=ids), truth, tolerance=1e-6)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_the_mean_of_gcn_over_samples_is_the_rows_of_the_graph(replace, loops):
    """Nodes of few neighbors are left out: with a loop or two, a small sample may hold nothing else."""
    edges = random_edges(30, 900, 7, loops=True)
    if not loops:
        edges = edges[:, edges[0] != edges[1]]
    graph, x = hr.Graph.from_edges(*edges, 30), rows_of(30)
    layer = GCNConv(IN, OUT)
    sampler = NeighborSampler(graph, [6], seed=3, replace=replace)
    with torch.no_grad():
        truth = layer(x, graph)
        blocks = (with_degrees(graph, sampler.sample(torch.arange(30), batch=i)) for i in range(1500))
        outs = torch.stack([layer(x[ids], block) for block, ids in blocks])
    error, spread = (outs.mean(0) - truth).abs(), outs.std(0) / 1500**0.5
    assert spread.max() > 1e-4  # samples do differ
    assert (error < 5 * spread + 1e-5).all()


def test_gcn_on_a_block_without_degrees_is_not_that_of_the_graph():
    """So that the tests above compare what they say."""
    graph, block, ids = sampled()
    layer, x = GCNConv(IN, OUT), rows_of(43)
    known = Block(block.indptr, block.indices, block.num_src, graph.degrees(loops=False)[ids.long()])
    assert not torch.allclose(layer(x[ids], block), layer(x[ids], known))


# ---- initial values


@every_layer
def test_initial_parameters_are_those_of_pyg_to_the_bit(make):
    ours, theirs = make()
    for layer in (ours, theirs):
        torch.manual_seed(0)
        layer.reset_parameters()
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS.keys())
def test_initial_parameters_of_two_widths_are_those_of_pyg(make):
    ours, theirs = make()
    for layer in (ours, theirs):
        torch.manual_seed(0)
        layer.reset_parameters()
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@every_layer
def test_a_new_layer_is_drawn_and_not_left_empty(make):
    ours, theirs = make()
    for name, parameter in theirs.named_parameters():
        found = dict(ours.named_parameters())[name]
        assert found.abs().max() < 2.5, name
        assert (found.abs().max() > 0) == (parameter.abs().max() > 0), name


# ---- dropout of attention


@pytest.mark.parametrize("v2", [False, True])
def test_attention_is_dropped_in_training_alone_and_follows_torchs_seed(v2):
    edges, nodes = GRAPHS["self loops"]
    layer, x, graph = GATConv(IN, OUT, heads=2, dropout=0.5, v2=v2), rows_of(nodes), hr.Graph.from_edges(*edges, nodes)
    torch.manual_seed(1)
    first, second = layer(x, graph), layer(x, graph)
    torch.manual_seed(1)
    assert torch.equal(layer(x, graph), first)
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x, graph), layer(x, graph))


@pytest.mark.parametrize("v2", [False, True])
def test_the_mean_of_dropped_attention_is_attention(v2):
    edges, nodes = GRAPHS["self loops"]
    layer, x, graph = GATConv(IN, OUT, dropout=0.4, v2=v2), rows_of(nodes), hr.Graph.from_edges(*edges, nodes)
    with torch.no_grad():
        outs = torch.stack([layer(x, graph) for _ in range(1000)])
        truth = layer.eval()(x, graph)
    error, spread = (outs.mean(0) - truth).abs(), outs.std(0) / 1000**0.5
    assert spread.max() > 1e-3
    assert (error < 5 * spread + 1e-5).all()


# ---- types of numbers


@every_layer
def test_doubles_equal_pyg_to_1e_12(make):
    edges, nodes = GRAPHS["self loops"]
    ours, theirs = filled(tuple(layer.double() for layer in make()))
    x = rows_of(nodes).double()
    truth = results(theirs, x, edges)
    assert truth["out"].dtype == torch.float64
    assert_same(results(ours, x, hr.Graph.from_edges(*edges, nodes)), truth, tolerance=1e-12)
    _, block, ids = sampled()
    x = rows_of(43)[ids].double()
    if not isinstance(ours, GCNConv):
        truth = results(theirs, x, edges_of(block), pair=block.num_dst)
        assert_same(results(ours, x, block), truth, tolerance=1e-12)


@every_layer
def test_bfloat16_is_near_fp32(make):
    edges, nodes = GRAPHS["ordinary"]
    ours, _ = filled(make())
    graph, x = hr.Graph.from_edges(*edges, nodes), rows_of(nodes).bfloat16()
    truth = results(ours, x.float(), graph)
    found = results(ours.bfloat16(), x, graph)
    for name, value in found.items():
        assert value.dtype == torch.bfloat16
        near(value, truth[name], name)


@every_layer
@pytest.mark.parametrize("form", ["graph", "block"])
def test_autocast_is_near_fp32(make, form):
    edges, nodes = GRAPHS["ordinary"]
    ours, _ = filled(make())
    where, x = hr.Graph.from_edges(*edges, nodes), rows_of(nodes)
    if form == "block":
        _, where, ids = sampled()
        x = x[ids]
    truth, found = results(ours, x, where), results(ours, x, where, cast=True)
    assert found["out"].dtype in (torch.bfloat16, torch.float32)
    for name, value in found.items():
        assert name == "out" or value.dtype == torch.float32
        near(value, truth[name], name)


def near(value, truth, name):
    """Within what eight bits allow: in the same direction. (A maximum may be that of another neighbor.)"""
    value, truth = value.float().flatten(), truth.flatten()
    assert value.isfinite().all(), name
    if truth.abs().max() > 1e-3:
        assert torch.cosine_similarity(value, truth, dim=0) > (0.999 if name == "out" else 0.9), name


# ---- what is refused


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="aggr must be 'mean', 'sum', 'add' or 'max', not 'min'"):
        SAGEConv(IN, OUT, aggr="min")
    with pytest.raises(ValueError, match="share_weights belongs to v2=True"):
        GATConv(IN, OUT, share_weights=True)
    edges, nodes = GRAPHS["ordinary"]
    for out in (2, 40):  # whichever of map and sum comes first
        with pytest.raises(ValueError, match="GCNConv takes one x, not a pair"):
            GCNConv(IN, out)((rows_of(nodes), rows_of(nodes)), edges)


@every_layer
def test_a_layer_says_what_it_is(make):
    ours, _ = make()
    assert type(ours).__name__ in repr(ours)
