"""Links with times and in disjoint trees: fields against PyG's own `edge_sample`, negatives that exist by then."""

import pytest
import torch

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.sample import NegativeSampler
from headrace.sample.negatives.in_time import NegativesInTime

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput
from torch_geometric.sampler import NegativeSampling as PygNegativeSampling
from torch_geometric.sampler.neighbor_sampler import edge_sample

from headrace.sample.pyg import hetero_output, sampler_output

RATES, BACK, KNOWS = ("user", "rates", "item"), ("item", "back", "user"), ("user", "knows", "user")
POSITIONS = torch.tensor([3, 17, 40, 41])


def random_edges(seed, sources, targets, count):
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(0, n, (count,), generator=draw) for n in (sources, targets)])


@pytest.fixture(scope="module")
def data():
    return Data(num_nodes=60, edge_index=random_edges(1, 60, 60, 500), time=torch.arange(60), when=torch.arange(500) % 70)


@pytest.fixture(scope="module")
def typed():
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 30, 50
    data["user"].time, data["item"].time = torch.arange(30), torch.arange(50)
    for seed, kind in enumerate((RATES, BACK, KNOWS)):
        sizes = [data[end].num_nodes for end in (kind[0], kind[2])]
        data[kind].edge_index = random_edges(seed, *sizes, 300)
        data[kind].when = torch.arange(300) % 70
    return data


class Drawn(PygNegativeSampling):
    """PyG's class, made to draw what ours drew."""

    negatives = None

    def sample(self, num_samples, endpoint, num_nodes=None):
        drawn = getattr(self.negatives, endpoint)
        assert len(drawn) == num_samples
        return drawn


def expected(loader, edges, time, *, mode, amount, edge_type=None):
    """What PyG's `edge_sample` makes of our negatives and our samples."""
    sampling = None
    if mode is not None:
        sampling = Drawn(mode, amount)
        drawn = loader._negatives.sample(edges[0, POSITIONS], 0, 11)
        turned = drawn.dst.view(len(POSITIONS), -1).t().flatten() if mode == "triplet" else drawn.dst
        sampling.negatives = type(drawn)(drawn.src, turned)

    def sample(seeds, times):
        found = loader.neighbor_sampler.sample(seeds, 0, 11, time=times, edge_ids=True)
        return (sampler_output if edge_type is None else hetero_output)(found, loader.pool)

    graph = loader.neighbor_sampler.graph
    inputs = EdgeSamplerInput(POSITIONS, edges[0, POSITIONS], edges[1, POSITIONS], time=time, input_type=edge_type)
    return edge_sample(inputs, sample, graph.num_nodes, disjoint=True, node_time=None, neg_sampling=sampling)


def assert_same_links(store, nodes, metadata, *, triplet):
    if triplet:
        _, src, pos, neg, time = metadata
        assert torch.equal(nodes[0].src_index, src)
        assert torch.equal(nodes[1].dst_pos_index, pos)
        assert torch.equal(nodes[1].dst_neg_index, neg)
        times = nodes[0].get("seed_time", None)
    else:
        _, index, label, time = metadata
        assert torch.equal(store.edge_label_index, index)
        assert label is None or torch.equal(store.edge_label, label)
        times = store.get("edge_label_time", None)
    assert (times is None and time is None) or torch.equal(times, time)


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize(("mode", "amount"), [(None, 1), ("binary", 1), ("binary", 2), ("triplet", 1), ("triplet", 3)])
def test_fields_are_those_of_pyg_for_the_same_draws(data, typed, mode, amount, by_time):
    how = None if mode is None else {"mode": mode, "amount": amount}
    time = torch.arange(20, 70) if by_time else None
    options = {"time_attr": "when", "edge_label_time": time} if by_time else {"disjoint": True}
    edges = data.edge_index[:, :50]
    loader = LinkNeighborLoader(data, [4, 3], edges, neg_sampling=how, seed=5, **options)
    batch = loader(POSITIONS, batch=11)
    out = expected(loader, edges, None if time is None else time[POSITIONS], mode=mode, amount=amount)
    assert torch.equal(batch.n_id, out.node)
    assert torch.equal(batch.batch, out.batch)
    assert_same_links(batch, (batch, batch), out.metadata, triplet=mode == "triplet")
    for kind in (RATES, KNOWS):
        edges = typed[kind].edge_index[:, :50]
        loader = LinkNeighborLoader(typed, [4, 3], (kind, edges), neg_sampling=how, seed=5, **options)
        batch = loader(POSITIONS, batch=11)
        out = expected(loader, edges, None if time is None else time[POSITIONS], mode=mode, amount=amount, edge_type=kind)
        for node_type in typed.node_types:
            assert torch.equal(batch[node_type].n_id, out.node[node_type])
            assert torch.equal(batch[node_type].batch, out.batch[node_type] % len(POSITIONS))
        assert_same_links(batch[kind], (batch[kind[0]], batch[kind[2]]), out.metadata, triplet=mode == "triplet")


def test_neighborhoods_and_negatives_are_of_the_past(data, typed):
    time = torch.arange(10, 60)
    for mode in ("binary", "triplet"):
        options = {"neg_sampling": {"mode": mode, "amount": 2}, "time_attr": "time", "edge_label_time": time, "batch_size": 25}
        for batch in LinkNeighborLoader(data, [-1], data.edge_index[:, :50], **options):
            seeds = batch.num_sampled_nodes[0]
            assert bool((batch.time[seeds:] <= time[batch.input_id][batch.batch[seeds:]]).all())
            ends = batch.edge_label_index[:, 25:] if mode == "binary" else batch.dst_neg_index
            assert bool((batch.time[ends] <= time[batch.input_id][batch.batch[ends]]).all())
        for batch in LinkNeighborLoader(typed, [-1, 2], (RATES, typed[RATES].edge_index[:, :50]), **options):
            for kind in typed.node_types:
                store, seeds = batch[kind], batch[kind].num_sampled_nodes[0]
                assert bool((store.time[seeds:] <= time[batch[RATES].input_id][store.batch[seeds:]]).all())


def test_negatives_are_drawn_from_all_that_exist():
    plain = NegativeSampler("triplet", num_src=9, num_dst=6, seed=1)
    sampler = NegativesInTime(plain, None, torch.tensor([5, 1, 4, 2, 3, 9]))
    drawn = sampler.sample(torch.zeros(4000, dtype=torch.int64), torch.tensor([3, 0, 100, 1]).repeat(1000), 0, 2).dst.view(-1, 4)
    assert [sorted(set(nodes.tolist())) for nodes in drawn.t()] == [[1, 3, 4], [1], [0, 1, 2, 3, 4, 5], [1]]
    counts = torch.bincount(drawn[:, 0])
    assert bool((counts[[1, 3, 4]] > 250).all())
    again = sampler.sample(torch.zeros(4000, dtype=torch.int64), torch.tensor([3, 0, 100, 1]).repeat(1000), 0, 2)
    assert torch.equal(again.dst, drawn.flatten())
    weighted = NegativeSampler({"mode": "triplet", "dst_weight": torch.tensor([0.0, 1, 1, 0, 2, 1])}, num_src=9, num_dst=6)
    drawn = NegativesInTime(weighted, None, torch.tensor([5, 1, 4, 2, 3, 9])).sample(
        torch.zeros(3000, dtype=torch.int64), torch.full((3000,), 3), 0, 2
    )
    assert sorted(drawn.dst.unique().tolist()) == [1, 4]
    assert 1850 < int((drawn.dst == 4).sum()) < 2150
    with pytest.raises(ValueError, match="leave filter out"):
        NegativesInTime(
            NegativeSampler({"mode": "binary", "filter": True}, num_src=2, num_dst=2, edges=hr.Graph.from_edges([0], [1])),
            None,
            None,
        )


def test_a_headrace_graph_has_them_too(data):
    graph = hr.Graph.from_edges(*data.edge_index, 60, time=data.when)
    options = {"edge_label_time": torch.arange(20, 70), "seed": 5, "neg_sampling": "binary"}
    ours = LinkNeighborLoader(graph, [4], data.edge_index[:, :50], temporal="uniform", inclusive=True, **options)
    theirs = LinkNeighborLoader(data, [4], data.edge_index[:, :50], time_attr="when", **options)
    batch, other = ours(POSITIONS), theirs(POSITIONS)
    assert torch.equal(batch.n_id.long(), other.n_id)
    assert torch.equal(batch.edge_label_time, other.edge_label_time)
    assert torch.equal(batch.tree.long(), other.batch)
    assert torch.equal(batch.to_pyg().edge_label_time, other.edge_label_time)


def test_times_are_asked_for(data, typed):
    with pytest.raises(ValueError, match="edge_label_time is not set"):
        LinkNeighborLoader(data, [2], time_attr="time")
    with pytest.raises(ValueError, match="edge_label_time is for temporal sampling"):
        LinkNeighborLoader(typed, [2], RATES, edge_label_time=torch.zeros(300))
    with pytest.raises(ValueError, match="edge_label_time has 3 entries for 300 edges"):
        LinkNeighborLoader(typed, [2], RATES, time_attr="time", edge_label_time=torch.zeros(3))


def test_typed_nodes_are_seeds_at_their_own_time_or_at_one_that_is_given(typed):
    loader = NeighborLoader(typed, [-1], "item", time_attr="time", batch_size=50)
    batch = next(iter(loader))
    assert torch.equal(batch["item"].seed_time, typed["item"].time)
    users = batch["user"]
    assert bool((users.time <= typed["item"].time[users.batch]).all())
    strict = next(iter(NeighborLoader(typed, [-1], "item", time_attr="time", batch_size=50, inclusive=False)))
    assert bool((strict["user"].time < typed["item"].time[strict["user"].batch]).all())
    assert strict["user"].num_nodes < users.num_nodes
    early = NeighborLoader(typed, [-1], "item", time_attr="when", input_time=torch.zeros(50, dtype=torch.int64), batch_size=50)
    assert int(next(iter(early))[RATES].when.max()) == 0
