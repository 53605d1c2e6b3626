"""Loaders that draw by weight, by time, in trees and by LABOR: PyG's keywords, PyG's fields."""

import itertools

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import NeighborLoader
from headrace.sample import NeighborSampler


@pytest.fixture(scope="module")
def dataset():
    made = hr.generate.community(600, 9_000, classes=3, features=5, seed=1)
    rng = np.random.default_rng(0)
    graph = hr.Graph(
        made.graph.indptr,
        made.graph.indices,
        weight=torch.from_numpy(rng.integers(0, 4, 9_000).astype(np.float32)),
        time=torch.from_numpy(rng.integers(0, 100, 9_000)),
    )
    return hr.Dataset(graph, x=made.x, y=made.y, splits=made.splits)


# ---- headrace in, headrace out


def test_a_temporal_batch_has_the_past_of_its_seeds(dataset):
    time = torch.arange(0, 120, 2)
    loader = NeighborLoader(
        dataset,
        [4, 3],
        input_nodes=torch.arange(60),
        temporal="uniform",
        input_time=time,
        batch_size=16,
        shuffle=True,
        edge_ids=True,
    )
    met = 0
    for batch in loader:
        assert torch.equal(batch.seed_time, time[batch.input_id])
        target = batch.sample.edge_index()[1]
        assert bool((dataset.graph.time[batch.e_id] < batch.seed_time[batch.tree[target].long()]).all())
        source, target = batch.n_id[batch.sample.edge_index()]
        edges = dataset.graph.edge_index()[:, batch.e_id]
        assert torch.equal(edges, torch.stack([source, target]).long())
        assert torch.equal(batch.x, dataset.x[batch.n_id])
        met += len(batch.e_id)
    assert met > 500


@pytest.mark.parametrize("options", [{"temporal": "last"}, {"time_attr": "time", "temporal_strategy": "last"}], ids=str)
def test_the_loader_draws_what_the_sampler_draws(dataset, options):
    time = torch.arange(60)
    loader = NeighborLoader(dataset, [4, 3], torch.arange(60), input_time=time, inclusive=True, batch_size=60, seed=3, **options)
    sampler = NeighborSampler(dataset.graph.sorted_by_time(), [4, 3], temporal="last", inclusive=True, seed=3)
    batch, sample = next(iter(loader)), sampler.sample(range(60), time=time)
    assert torch.equal(batch.n_id, sample.nodes)
    assert torch.equal(batch.tree, sample.tree)


@pytest.mark.parametrize("keyword", [{"weighted": True}, {"weight_attr": "weight"}], ids=str)
@pytest.mark.parametrize("replace", [False, True])
def test_weighted_batches_have_no_edge_of_weight_zero(dataset, keyword, replace):
    for batch in NeighborLoader(dataset, [4, 3], "train", batch_size=32, edge_ids=True, replace=replace, **keyword):
        assert bool((dataset.graph.weight[batch.e_id] > 0).all())
        assert batch.tree is None
        assert batch.seed_time is None


def test_disjoint_batches_of_any_staleness_are_the_same(dataset):
    options = {"input_nodes": "train", "batch_size": 16, "disjoint": True, "shuffle": True, "seed": 5}
    for ours, other in zip(
        NeighborLoader(dataset, [4, 3], staleness=0, threads=2, **options),
        NeighborLoader(dataset, [4, 3], staleness=3, threads=1, **options),
        strict=True,
    ):
        assert torch.equal(ours.n_id, other.n_id)
        assert torch.equal(ours.tree, other.tree)


def test_dependent_labor_batches_overlap(dataset):
    def overlap(**options):
        loader = NeighborLoader(
            dataset, [3], torch.arange(50).repeat(6), batch_size=50, labor=True, seed=2, edge_ids=True, **options
        )
        drawn = [set(batch.e_id.tolist()) for batch in loader]
        return np.mean([len(a & b) / len(a) for a, b in itertools.pairwise(drawn)])

    assert overlap(batch_dependency=50) > overlap() + 0.3
    assert overlap(layer_dependency=True) == overlap()  # one hop


def test_one_call_samples_by_time_as_well(dataset):
    loader = NeighborLoader(dataset, [4], torch.arange(60), temporal="last", input_time=torch.arange(60))
    assert loader([7, 3]).seed_time.tolist() == [7, 3]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"temporal": "uniform"}, "needs input_time=, one time for every input node"),
        ({"temporal": "uniform", "input_time": [1, 2]}, "input_time has 2 entries for 600 input nodes"),
        ({"temporal": "uniform", "input_time": np.full(600, 0.5)}, "the graph's times are integers"),
        ({"temporal": "middle", "input_time": np.arange(600)}, "temporal must be"),
        ({"labor": True, "replace": True}, "neither with replace"),
    ],
)
def test_bad_combinations_are_named_before_any_batch(dataset, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        NeighborLoader(dataset, [3], **options)


def test_trees_and_times_move_with_their_batch(dataset):
    loader = NeighborLoader(dataset, [4], torch.arange(60), temporal="last", input_time=torch.arange(60), batch_size=60)
    moved = next(iter(loader)).to("meta")
    assert moved.tree.device.type == moved.seed_time.device.type == "meta"


# ---- PyG in, PyG out


@pytest.fixture(scope="module")
def pyg():
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(500, 7, generator=generator),
        edge_index=torch.randint(0, 500, (2, 4_000), generator=generator),
        edge_weight=torch.randint(0, 4, (4_000,), generator=generator).float(),
        edge_time=torch.randint(0, 100, (4_000,), generator=generator),
        time=torch.randint(0, 100, (500,), generator=generator),
    )


def sampler_in_pyg(sampler):
    """Our sampler behind PyG's own loader, which makes the fields."""
    from torch_geometric.sampler import BaseSampler, NodeSamplerInput

    from headrace.sample.pyg import sampler_output

    class Adapter(BaseSampler):
        def sample_from_nodes(self, inputs, **_):
            inputs = NodeSamplerInput.cast(inputs)
            sample = sampler.sample(inputs.node, time=inputs.time, edge_ids=True)
            return sampler_output(sample, sampler.pool, metadata=(inputs.input_id, inputs.time))

        def sample_from_edges(self, *_, **__):
            raise NotImplementedError

    return Adapter()


@pytest.mark.parametrize(
    "options",
    [
        {"disjoint": True},
        {"weight_attr": "edge_weight"},
        {"time_attr": "edge_time", "input_time": torch.arange(0, 100, 2)},
        {"time_attr": "time", "temporal_strategy": "last", "input_time": torch.arange(0, 100, 2), "inclusive": True},
    ],
    ids=lambda o: "-".join(o),
)
def test_fields_are_those_of_pygs_loader_for_the_same_sample(pyg, options):
    from torch_geometric.loader import NodeLoader

    nodes = torch.arange(50)
    ours = NeighborLoader(pyg, [4, 3], input_nodes=nodes, batch_size=50, seed=5, **options)
    theirs = NodeLoader(
        pyg, sampler_in_pyg(ours.neighbor_sampler), input_nodes=nodes, input_time=options.get("input_time"), batch_size=50
    )
    a, b = next(iter(ours)), next(iter(theirs))
    assert set(a.keys()) == set(b.keys())
    for field in b.keys():  # noqa: SIM118 - PyG's method
        if isinstance(b[field], torch.Tensor):
            assert a[field].dtype == b[field].dtype, field
            assert torch.equal(a[field], b[field]), field
        else:
            assert a[field] == b[field], field
    assert ("batch" in a) == ("weight_attr" not in options)
    assert ("seed_time" in a) == ("input_time" in options)


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("attribute", ["edge_time", "time"])
def test_all_of_the_past_is_the_past_by_brute_force(pyg, attribute, inclusive):
    seeds, until = torch.tensor([3, 8, 3]), torch.tensor([50, 20, 90])
    loader = NeighborLoader(pyg, [-1, -1], seeds, batch_size=3, time_attr=attribute, input_time=until, inclusive=inclusive)
    batch = next(iter(loader))
    source, target = pyg.edge_index
    time = pyg.edge_time if attribute == "edge_time" else pyg.time[source]
    for tree in range(3):
        past = time <= until[tree] if inclusive else time < until[tree]
        found, frontier, edges = {int(seeds[tree])}, {int(seeds[tree])}, set()
        for _ in range(2):
            drawn = [e for e in past.nonzero().flatten().tolist() if int(target[e]) in frontier]
            edges |= set(drawn)
            new = {int(source[e]) for e in drawn} - found
            found, frontier = found | new, new
        assert set(batch.n_id[batch.batch == tree].tolist()) == found
        assert set(batch.e_id[batch.batch[batch.edge_index[1]] == tree].tolist()) == edges
    assert torch.equal(batch.n_id[batch.edge_index], pyg.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_time, pyg.edge_time[batch.e_id])


def test_nodes_with_times_are_seeds_at_their_own(pyg):
    options = {"input_nodes": torch.arange(40), "batch_size": 40, "time_attr": "time"}
    for inclusive, is_past in ((None, torch.le), (True, torch.le), (False, torch.lt)):
        batch = next(iter(NeighborLoader(pyg, [5, 5], **options, inclusive=inclusive)))
        assert torch.equal(batch.seed_time, pyg.time[:40])
        fresh = batch.time[40:]
        assert bool(is_past(fresh, batch.seed_time[batch.batch[40:]]).all())
        assert len(fresh) > 40


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_adj_t_is_sampled_by_weight_and_time(pyg):
    from pyg_cases import by_adjacency
    from torch_geometric.data import Data

    adjacency, order = by_adjacency(pyg.edge_index, torch.ones(4_000), 500)
    data = Data(x=pyg.x, adj_t=adjacency, time=pyg.time)
    options = {"time_attr": "time", "batch_size": 30, "seed": 4}
    batch = next(iter(NeighborLoader(data, [5], torch.arange(30), **options)))
    other = next(iter(NeighborLoader(pyg, [5], torch.arange(30), **options)))
    assert torch.equal(batch.n_id, other.n_id)
    assert torch.equal(order[batch.e_id], other.e_id)


def test_a_dataset_batch_turns_into_pygs_fields(pyg, dataset):
    loader = NeighborLoader(dataset, [4], torch.arange(60), temporal="last", input_time=torch.arange(60), batch_size=60)
    batch = next(iter(loader))
    data = batch.to_pyg()
    assert data.batch.dtype == torch.int64
    assert torch.equal(data.batch, batch.tree.long())
    assert torch.equal(data.seed_time, torch.arange(60))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weighted": True}, "weighted=True needs weight_attr="),
        ({"weight_attr": "x"}, "which is no edge attribute"),
        ({"weight_attr": "price"}, "which is no edge attribute"),
        ({"temporal": "last"}, "temporal= needs time_attr="),
        ({"time_attr": "when"}, "neither a node nor an edge attribute"),
        ({"time_attr": "edge_time"}, "needs input_time="),
    ],
)
def test_attributes_that_are_not_there_are_named(pyg, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        NeighborLoader(pyg, [3], **options)


def test_pygs_own_temporal_sampler_gives_the_same_sets(pyg):
    import torch_geometric.typing as pyg_typing

    if not pyg_typing.WITH_PYG_LIB:
        pytest.skip("PyG's own temporal sampler needs pyg-lib")
    from torch_geometric.loader import NeighborLoader as PygLoader

    options = {"input_nodes": torch.arange(50), "time_attr": "time", "input_time": torch.arange(0, 100, 2), "batch_size": 50}
    ours, theirs = (
        next(iter(NeighborLoader(pyg, [-1, -1], inclusive=True, **options))),
        next(iter(PygLoader(pyg, [-1, -1], **options))),
    )
    assert set(ours.keys()) == set(theirs.keys())
    assert set(zip(ours.batch.tolist(), ours.n_id.tolist(), strict=True)) == set(
        zip(theirs.batch.tolist(), theirs.n_id.tolist(), strict=True)
    )
