"""What layers have in common: the order of map and sum, rows read by id, nothing of the size of edges x features."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.nn import GATConv, GCNConv, GINConv, SAGEConv
from headrace.nn.convs import gcn, gin, sage
from headrace.nn.order import transform_first
from headrace.nn.structure import structure_of
from headrace.sample import Block, NeighborSampler

pytestmark = pytest.mark.usefixtures("one_thread")
NODES, IN = 60, 8


def data():
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, NODES - 2, (2, 500), generator=generator)  # loops and multi-edges among them
    return hr.Graph.from_edges(source, target, NODES), torch.randn(NODES, IN, generator=generator)


def block_of(graph, fanout=4):
    sample = NeighborSampler(graph, [fanout], seed=1).sample(torch.arange(10, 25))
    block = sample.blocks[0]
    known = graph.degrees(loops=False)[sample.nodes.long()]
    return Block(block.indptr, block.indices, block.num_src, known), sample.nodes


def results(layer, x, where, **options):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, where, **options)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype))
    return [out.detach(), x.grad, *[parameter.grad for parameter in layer.parameters()]]


def assert_close(ours, truth, tolerance=1e-5):
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(1, float(b.abs().max())))


SUMS = {
    "sage mean": lambda out, wide=IN: SAGEConv(wide, out),
    "sage sum": lambda out, wide=IN: SAGEConv(wide, out, aggr="sum"),
    "sage max": lambda out, wide=IN: SAGEConv(wide, out, aggr="max"),
    "sage without root": lambda out, wide=IN: SAGEConv(wide, out, root_weight=False),
    "sage project": lambda out, wide=IN: SAGEConv(wide, out, project=True),
    "sage normalize": lambda out, wide=IN: SAGEConv(wide, out, normalize=True),
    "gcn": lambda out, wide=IN: GCNConv(wide, out),
    "gcn improved": lambda out, wide=IN: GCNConv(wide, out, improved=True),
    "gcn without loops": lambda out, wide=IN: GCNConv(wide, out, add_self_loops=False),
    "gcn without norm": lambda out, wide=IN: GCNConv(wide, out, normalize=False),
    "gin": lambda out, wide=IN: GINConv(
        nn.Sequential(nn.Linear(wide, out), nn.BatchNorm1d(out), nn.ReLU(), nn.Linear(out, 3)), train_eps=True
    ),
    "gin linear": lambda out, wide=IN: GINConv(nn.Linear(wide, out), eps=0.3),
}
ATTENTION = {"gat": lambda out, wide=IN: GATConv(wide, out), "gatv2": lambda out, wide=IN: GATConv(wide, out, v2=True)}
every_sum = pytest.mark.parametrize("make", SUMS.values(), ids=SUMS.keys())
every_layer = pytest.mark.parametrize("make", (SUMS | ATTENTION).values(), ids=(SUMS | ATTENTION).keys())


def forced(monkeypatch, first):
    """Have every layer map before the sum, or after it; the list of calls tells whether one asked."""
    calls = []

    def answer(where, wide, narrow, **how):
        calls.append((wide, narrow))
        return first

    for module in (sage, gcn, gin):
        monkeypatch.setattr(module, "transform_first", answer)
    return calls


# ---- before or after the sum


@every_sum
@pytest.mark.parametrize("out", [3, 40])
@pytest.mark.parametrize("form", ["graph", "block", "edge_index", "rows"])
def test_both_orders_give_the_same(monkeypatch, make, out, form):
    graph, x = data()
    layer = make(out)
    if form == "block":
        where, ids = block_of(graph)
        x = x[ids]
    else:
        where = {"graph": graph, "edge_index": graph.edge_index(), "rows": graph.rows(20, 50)}[form]
    if form == "rows":  # whose gradient is not there yet
        with torch.no_grad():
            forced(monkeypatch, True)
            before = [layer(x, where)]
            forced(monkeypatch, False)
            after = [layer(x, where)]
    else:
        calls = forced(monkeypatch, True)
        before = results(layer, x, where)
        forced(monkeypatch, False)
        after = results(layer, x, where)
        assert bool(calls) == (getattr(layer, "reduce", "sum") != "max")  # a maximum does not commute with a map
    assert_close(before, after)


@every_sum
def test_both_orders_give_the_same_of_pairs_and_ids(monkeypatch, make):
    graph, x = data()
    layer = make(5)
    block, ids = block_of(graph)
    found = []
    for first in (True, False):
        forced(monkeypatch, first)
        found.append(results(layer, x, block, ids=ids))
        if not isinstance(layer, GCNConv):
            found[-1] += results(layer, x, Block(graph.indptr, graph.indices, NODES), ids=torch.arange(NODES))
            pair = (x[ids].requires_grad_(), x[-block.num_dst :].clone().requires_grad_())
            out = layer(pair, block)
            found[-1] += [out.detach(), *torch.autograd.grad(out.square().sum(), pair, allow_unused=True)]
    assert_close(*([value for value in part if value is not None] for part in found))


@every_sum
def test_both_orders_give_one_type_under_autocast(monkeypatch, make):
    graph, x = data()
    layer, types = make(5), []
    for first in (True, False):
        forced(monkeypatch, first)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            types.append(layer(x, graph).dtype)
    assert types[0] == types[1]


def test_on_a_whole_graph_the_smaller_width_is_summed():
    graph, _ = data()
    assert transform_first(graph, 100, 10)
    assert not transform_first(graph, 10, 100)
    assert not transform_first(graph, 10, 10)
    assert transform_first(graph.rows(0, NODES), 100, 10)


def test_on_a_sampled_block_the_sum_comes_first():
    """Its sources are many, and most rows are read once."""
    graph = hr.generate.community(5_000, 100_000, features=0, seed=1).graph
    for wide, narrow in ((100, 256), (256, 256), (256, 47), (602, 41)):
        for block in NeighborSampler(graph, [10, 5]).sample(torch.arange(50)).blocks:
            assert not transform_first(block, wide, narrow), (block, wide, narrow)


def test_a_layer_sums_the_smaller_width(monkeypatch):
    graph, x = data()
    widths = []
    for module in (sage, gcn, gin):
        original = module.aggregate
        monkeypatch.setattr(module, "aggregate", lambda x, *a, f=original, **k: (widths.append(x.shape[1]), f(x, *a, **k))[1])
    for make in (SUMS["sage mean"], SUMS["gcn"], SUMS["gin linear"]):
        for out in (3, 40):
            make(out)(x, graph)
    assert widths == [3, IN] * 3


# ---- rows by id


@every_layer
@pytest.mark.parametrize("out", [3, 40])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_rows_by_id_equal_rows_gathered_first(make, out, ids_dtype):
    graph, x = data()
    layer = make(out)
    block, ids = block_of(graph)
    ids = ids.to(ids_dtype)
    chosen = torch.randint(0, NODES, (NODES,)).to(ids_dtype)  # with repeats
    beyond = torch.cat([ids, ids[:3]])  # more ids than sources, as the inner blocks of a sample have
    for where, names in ((block, ids), (block, beyond), (graph, chosen), (graph.edge_index(), chosen)):
        layer.zero_grad()
        by_id = results(layer, x, where, ids=names)
        rows = x.clone().requires_grad_()
        layer.zero_grad()
        result = layer(rows[names.long()], where)
        result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(1)))
        assert_close(by_id, [result.detach(), rows.grad, *[parameter.grad for parameter in layer.parameters()]])


def test_an_edge_index_with_ids_has_a_node_per_id():
    """And not one per row of the array that they name."""
    _, x = data()
    edges, ids = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([50, 7, 31])
    for make in (SUMS | ATTENTION).values():
        layer = make(4).eval()
        out = layer(x, edges, ids=ids)
        assert len(out) == 3
        torch.testing.assert_close(out, layer(x[ids], edges))


def test_features_are_not_copied_where_the_sum_comes_first(monkeypatch):
    graph, x = data()
    block, ids = block_of(graph)
    gathered = []
    original = hr.nn.structure.gather
    monkeypatch.setattr(hr.nn.structure, "gather", lambda x, ids, **how: (gathered.append(len(ids)), original(x, ids, **how))[1])
    forced(monkeypatch, False)
    for name in ("sage mean", "sage max", "gcn", "gin", "gin linear"):
        SUMS[name](5)(x, block, ids=ids)
    assert set(gathered) == {block.num_dst}  # the targets' own rows alone


# ---- memory


@every_layer
@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")  # some builds of torch grumble when it starts
@pytest.mark.parametrize("out", [16, 64])
def test_nothing_of_edges_times_features_is_allocated(make, out):
    """No allocation of torch's, within the kernels too, reaches two columns of edges; indices and norms are one."""
    edges, width = 20_011, 32
    source, target = torch.randint(0, 200, (2, edges))
    graph, x = hr.Graph.from_edges(source, target, 200), torch.randn(200, width, requires_grad=True)
    layer = make(out, width)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        layer(x, graph).square().sum().backward()
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert x.grad.abs().sum() > 0
    assert max(sizes) >= 200 * min(out, width) * 4  # allocations are seen
    assert max(sizes) < 2 * edges * 8


def test_a_gradient_runs_over_the_transpose_that_the_graph_keeps():
    graph, x = data()
    layer = SAGEConv(IN, 40)
    layer(x, graph)
    assert "reverse" not in graph._derived  # features want no gradient
    results(layer, x, graph)
    kept = graph._derived["reverse"]
    results(layer, x, graph)
    assert graph._derived["reverse"] is kept


def test_inference_makes_no_transpose():
    graph, x = data()
    with torch.no_grad():
        for make in (SUMS | ATTENTION).values():
            make(3)(x, graph)
    assert "reverse" not in graph._derived


# ---- what is refused


def test_a_structure_is_taken_as_it_is():
    graph, x = data()
    block, ids = block_of(graph)
    assert structure_of(graph, x) is graph
    assert structure_of(block, x[ids]) is block
    rows = graph.rows(3, 9)
    assert structure_of(rows, x) is rows


@pytest.mark.parametrize("shape", [(3, 4), (2,), (2, 3, 4)])
def test_an_edge_index_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"edge_index must have shape \[2, edges\], not"):
        SAGEConv(IN, 3)(torch.randn(5, IN), torch.zeros(shape, dtype=torch.int64))


@every_layer
def test_rows_that_do_not_fit_are_refused(make):
    graph, x = data()
    layer = make(3)
    with pytest.raises(ValueError, match=f"x has {NODES - 1} rows for {NODES} source nodes"):
        layer(x[1:], graph)
    with pytest.raises(ValueError, match=f"x has 5 rows for {NODES} source nodes"):
        layer(x, graph, ids=torch.arange(5))
    with pytest.raises(ValueError, match="must be below num_nodes=2"):
        layer(x[:2], torch.tensor([[0, 5], [1, 0]]))
    with pytest.raises(ValueError):
        layer((x, x[:4]), graph.rows(0, 5))


def test_targets_that_do_not_fit_are_refused():
    graph, x = data()
    with pytest.raises(ValueError, match="x has 4 rows of targets, but there are 5 target nodes"):
        SAGEConv(IN, 3)((x, x[:4]), graph.rows(0, 5))


@every_layer
def test_ids_with_a_pair_are_refused(make):
    graph, x = data()
    with pytest.raises(ValueError, match=r"ids name rows of one array|not a pair"):
        make(3)((x, x), graph, ids=torch.arange(NODES))


def test_weights_beside_a_graph_are_refused():
    graph, x = data()
    with pytest.raises(ValueError, match="a Graph carries its own weights"):
        GCNConv(IN, 3)(x, graph, torch.ones(graph.num_edges))


def test_ids_out_of_range_are_refused():
    graph, x = data()
    for make in (SUMS | ATTENTION).values():
        with pytest.raises((ValueError, IndexError), match=r"out of range|outside|not in"):
            make(3)(x[:10], graph, ids=torch.arange(NODES))
