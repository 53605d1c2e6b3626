"""`LinkNeighborLoader`: PyG's fields to the bit, negatives by the sampler's contract, batches by (seed, epoch, batch)."""

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import LinkBatch, LinkNeighborLoader, NeighborLoader
from headrace.sample import NegativeSampler, NegativeSampling


@pytest.fixture(scope="module")
def dataset():
    return hr.generate.community(nodes=400, edges=4000, classes=3, features=6)


def held_out(count=100):
    return torch.randint(0, 400, (2, count), generator=torch.Generator().manual_seed(1))


# ---- headrace in, headrace out


@pytest.mark.parametrize("amount", [1, 0.3, 2])
def test_binary_batches_hold_positives_then_the_negatives_of_the_contract(dataset, amount):
    edges, negative = held_out(), NegativeSampler({"mode": "binary", "amount": amount}, num_src=400, num_dst=400, seed=5)
    loader = LinkNeighborLoader(
        dataset, [4, 3], edges, neg_sampling={"mode": "binary", "amount": amount}, batch_size=32, shuffle=True, seed=5
    )
    seen = []
    for index, batch in enumerate(loader):
        assert isinstance(batch, LinkBatch)
        positives = len(batch.input_id)
        drawn = negative.sample(torch.zeros(positives, dtype=torch.int64), 0, index)
        links = batch.n_id[batch.edge_label_index]
        assert torch.equal(links[:, :positives], edges[:, batch.input_id].to(links.dtype))
        assert links[:, positives:].tolist() == [drawn.src.tolist(), drawn.dst.tolist()]
        assert batch.edge_label.tolist() == [1.0] * positives + [0.0] * len(drawn.src)
        assert batch.edge_label.dtype == torch.float32
        assert torch.equal(batch.seeds, links.unique())
        assert batch.batch_size == len(batch.seeds)
        assert torch.equal(batch.x, dataset.x[batch.n_id.long()])
        assert batch.src_index is None
        assert repr(batch).startswith(f"LinkBatch({index}, edges={positives}, Sample(seeds=")
        seen += batch.input_id.tolist()
    assert len(loader) == 4
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("amount", [1, 3])
def test_triplets_hold_a_source_its_target_and_negatives(dataset, amount):
    edges, negative = held_out(), NegativeSampler({"mode": "triplet", "amount": amount}, num_src=400, num_dst=400, seed=5)
    how = {"mode": "triplet", "amount": amount}
    for index, batch in enumerate(LinkNeighborLoader(dataset, [4], edges, neg_sampling=how, batch_size=64, seed=5)):
        src, dst = edges[:, batch.input_id]
        assert batch.n_id[batch.src_index].tolist() == src.tolist()
        assert batch.n_id[batch.dst_pos_index].tolist() == dst.tolist()
        assert batch.dst_neg_index.shape == ((len(src), amount) if amount > 1 else (len(src),))
        drawn = negative.sample(src, 0, index)
        assert batch.n_id[batch.dst_neg_index].flatten().tolist() == drawn.dst.tolist()
        assert batch.edge_label_index is batch.edge_label is None


def test_the_neighborhood_is_that_of_the_node_loader(dataset):
    batch = LinkNeighborLoader(dataset, [4, 3], held_out(), neg_sampling="binary", batch_size=50, seed=2)(range(50), batch=7)
    same = NeighborLoader(dataset, [4, 3], batch.seeds, batch_size=999, seed=2)(range(batch.batch_size), batch=7)
    assert torch.equal(batch.n_id, same.n_id)
    assert torch.equal(batch.sample.indices, same.sample.indices)


def test_threads_staleness_and_resuming_change_nothing(dataset):
    def batches(first=0, **options):
        how = {"mode": "binary", "filter": True}
        loader = LinkNeighborLoader(dataset, [3, 2], held_out(), neg_sampling=how, batch_size=16, shuffle=True, seed=9, **options)
        loader.resume(2, first)
        return [(b.n_id.tolist(), b.edge_label_index.tolist(), b.input_id.tolist()) for b in loader]

    plain = batches(threads=1, staleness=0)
    assert batches(threads=4, staleness=5) == plain
    assert batches(ahead="rows") == plain
    assert batches(first=3) == plain[3:]


def test_filtered_negatives_are_no_edges_and_what_is_left_is_counted(dataset):
    true = set(map(tuple, dataset.graph.edge_index().t().tolist()))
    loader = LinkNeighborLoader(dataset, [2], neg_sampling=NegativeSampling("binary", filter=True, rounds=20), batch_size=500)
    for batch in loader:
        pairs = batch.n_id[batch.edge_label_index[:, batch.edge_label == 0]].t().tolist()
        assert not any(tuple(p) in true for p in pairs)
    assert loader.edges_left == 0
    full = hr.Graph.from_edges([0, 1, 0, 1], [0, 0, 1, 1])
    loader = LinkNeighborLoader(full, [1], neg_sampling={"mode": "binary", "filter": True}, batch_size=3)
    for _ in range(2):
        assert len(list(loader)) == 2
        assert loader.edges_left == 4


def test_without_edges_given_all_edges_of_the_graph_are_taken(dataset):
    loader = LinkNeighborLoader(dataset, [2], batch_size=1000)
    found = torch.cat([b.n_id[b.edge_label_index] for b in loader], dim=1)
    assert torch.equal(found.long(), dataset.graph.edge_index())
    assert next(iter(loader)).edge_label is None


@pytest.mark.parametrize(("least", "moved"), [(0, 1), (1, 0)])
def test_labels_move_up_where_zero_would_mean_no_edge(dataset, least, moved):
    label = torch.arange(100) % 3 + least
    loader = LinkNeighborLoader(dataset, [2], held_out(), edge_label=label, neg_sampling="binary", batch_size=100)
    batch = next(iter(loader))
    assert batch.edge_label.tolist() == (label + moved).tolist() + [0] * 100
    plain = LinkNeighborLoader(dataset, [2], held_out(), edge_label=label.view(50, 2)[:, :1].repeat(2, 2), batch_size=100)
    assert next(iter(plain)).edge_label.shape == (100, 2)


def test_a_batch_moves_to_a_device(dataset):
    batch = next(iter(LinkNeighborLoader(dataset, [2], held_out(), neg_sampling="triplet", batch_size=8)))
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.dst_neg_index.device.type == moved.blocks[0].indices.device.type == "meta"
    assert moved.edge_label is None


def test_edges_come_in_any_form(dataset):
    wanted = LinkNeighborLoader(dataset, [2], held_out())(range(100)).edge_label_index
    for form in (held_out().int(), held_out().numpy(), held_out().tolist(), held_out().t().contiguous().t()):
        assert torch.equal(LinkNeighborLoader(dataset, [2], form)(range(100)).edge_label_index, wanted)


def test_no_edges_make_no_batches(dataset):
    loader = LinkNeighborLoader(dataset, [2], torch.empty(2, 0, dtype=torch.int64), neg_sampling="triplet")
    assert list(loader) == []
    assert loader(torch.empty(0, dtype=torch.int64)).dst_neg_index.shape == (0,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edge_label_index": torch.zeros(3, 2)}, ValueError, r"shape \[2, edges\]"),
        ({"edge_label_index": torch.zeros(2, 3)}, ValueError, "integers"),
        ({"edge_label_index": torch.tensor([[0], [400]])}, ValueError, "targets from 400 to 400"),
        ({"edge_label_index": torch.tensor([[-1], [0]])}, ValueError, "sources from -1"),
        ({"edge_label": torch.zeros(3)}, ValueError, "edge_label has shape"),
        ({"edge_label": torch.zeros(100), "neg_sampling": "triplet"}, ValueError, "triplets have no labels"),
        ({"edge_label_time": torch.zeros(100)}, ValueError, "edge_label_time"),
        ({"time_attr": "time"}, ValueError, "no times to sort by"),
        ({"input_time": torch.zeros(100)}, TypeError, "edge_label_time in place of input_time"),
        ({"neg_sampling": "some"}, ValueError, "'binary' or 'triplet'"),
        ({"input_nodes": None}, TypeError, "edge_label_index in place of input_nodes"),
        ({"wrong": 1}, TypeError, "LinkNeighborLoader has no keyword 'wrong'"),
    ],
)
def test_what_does_not_fit_is_refused(dataset, options, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(dataset, [2], **{"edge_label_index": held_out(), **options})


def test_positions_outside_of_the_edges_are_refused(dataset):
    with pytest.raises(IndexError, match="100 input edges"):
        LinkNeighborLoader(dataset, [2], held_out())([100])


# ---- PyG in, PyG out


def pyg():
    return pytest.importorskip("torch_geometric", reason="needs torch-geometric")


def pyg_data():
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(300, 7, generator=generator),
        edge_index=torch.randint(0, 300, (2, 2000), generator=generator),
        edge_attr=torch.randn(2000, 3, generator=generator),
        extra=np.arange(600).reshape(300, 2),
        note="kept as it is",
    )


@pytest.mark.parametrize(("mode", "label"), [(None, False), (None, True), ("binary", False), ("binary", True), ("triplet", False)])
@pytest.mark.parametrize("amount", [1, 2])
def test_fields_are_those_of_pygs_loader_for_the_same_draws(mode, amount, label):
    pyg()
    from pyg_cases import assert_same_fields, link_loader

    data, positions = pyg_data(), torch.tensor([3, 17, 40, 41, 99])
    how = None if mode is None else {"mode": mode, "amount": amount}
    edges = data.edge_index[:, :100]
    options = {"edge_label_index": edges, "edge_label": torch.arange(100) % 4 if label else None}
    ours = LinkNeighborLoader(data, [4, 3], neg_sampling=how, seed=5, **options)(positions, batch=11)
    drawn = None
    if how is not None:
        drawn = NegativeSampler(how, num_src=300, num_dst=300, seed=5).sample(edges[0, positions], 0, 11)
    assert_same_fields(ours, link_loader(data, 11, how=how, negatives=drawn, **options)(positions))


def test_pygs_own_settings_and_ratio_are_understood():
    pyg()
    from torch_geometric.sampler import NegativeSampling as PygNegativeSampling

    data = pyg_data()
    batches = [
        LinkNeighborLoader(data, [3], neg_sampling=given, neg_sampling_ratio=ratio, batch_size=10)(range(10))
        for given, ratio in ((PygNegativeSampling("binary", 2.0), None), ("triplet", 2.0), ({"mode": "binary", "amount": 2}, 0.0))
    ]
    for batch in batches:
        assert torch.equal(batch.edge_label_index, batches[0].edge_label_index)
        assert batch.edge_label.tolist() == [1.0] * 10 + [0.0] * 20
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_a_dataset_batch_turns_into_the_same_data(dataset):
    pyg()
    from torch_geometric.data import Data

    data = Data(x=dataset.x, y=dataset.y, edge_index=dataset.graph.edge_index())
    for mode in ("binary", "triplet"):
        options = {"edge_label_index": held_out(), "neg_sampling": mode, "batch_size": 32, "seed": 3}
        ours = next(iter(LinkNeighborLoader(dataset, [3, 2], edge_ids=True, **options))).to_pyg()
        theirs = next(iter(LinkNeighborLoader(data, [3, 2], **options)))
        assert set(ours.keys()) - {"num_nodes"} == set(theirs.keys())
        for field in theirs.keys():  # noqa: SIM118 - PyG's method
            a, b = getattr(ours, field), getattr(theirs, field)
            assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b, field


def test_transforms_see_links():
    pyg()

    def on_output(output):
        assert len(output.metadata) == 4
        return output

    loader = LinkNeighborLoader(
        pyg_data(), [3], neg_sampling="binary", batch_size=900, transform=lambda b: b.num_edges, transform_sampler_output=on_output
    )
    assert all(isinstance(n, int) for n in loader)
