import threading

import pytest
import torch

import headrace as hr
from headrace.loader import Batch, NeighborLoader
from headrace.pipeline import Trace


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=3000, edges=60_000, classes=5, features=20, seed=3, splits=(0.4, 0.1, 0.5))


def fingerprint(batch: Batch) -> tuple:
    s = batch.sample
    return s.nodes.tolist(), s.indptr.tolist(), s.indices.tolist(), batch.input_id.tolist(), batch.x.sum().item()


def test_a_batch_holds_the_rows_and_labels_of_its_nodes(data):
    loader = NeighborLoader(data, [5, 3], input_nodes="train", batch_size=100)
    assert len(loader) == 12
    seen = []
    for index, batch in enumerate(loader):
        assert isinstance(batch, Batch)
        assert batch.index == index
        assert torch.equal(batch.x, data.x[batch.n_id.long()])
        assert torch.equal(batch.y, data.y[batch.n_id[: batch.batch_size].long()])
        assert len(batch.blocks) == 2
        assert batch.blocks[0].num_dst == batch.batch_size
        assert batch.blocks[-1].num_src == len(batch.n_id)
        assert batch.e_id is None
        seen += batch.n_id[: batch.batch_size].tolist()
    assert seen == data.splits["train"].tolist()


def test_a_batch_depends_on_seed_epoch_and_index_alone(data):
    def epoch(number, **options):
        loader = NeighborLoader(data, [5, 3], "train", batch_size=128, shuffle=True, seed=9, **options)
        loader.epoch = number
        return [fingerprint(b) for b in loader]

    expected = [epoch(0), epoch(1)]
    assert expected[0] != expected[1]
    for threads in (1, 2, 7):
        for staleness in (0, 1, 5):
            for ahead in ("sample", "rows"):
                assert epoch(1, threads=threads, staleness=staleness, ahead=ahead) == expected[1]
    loader = NeighborLoader(data, [5, 3], "train", batch_size=128, shuffle=True, seed=9)
    for number in (0, 1):
        assert loader.epoch == number
        assert [fingerprint(b) for b in loader] == expected[number]


def test_another_seed_gives_another_order_and_other_neighbors(data):
    first, second = (next(iter(NeighborLoader(data, [5], "train", batch_size=50, shuffle=True, seed=s))) for s in (1, 2))
    assert first.n_id[:50].tolist() != second.n_id[:50].tolist()
    first, second = (next(iter(NeighborLoader(data, [5], "train", batch_size=50, seed=s))) for s in (1, 2))
    assert first.n_id[:50].tolist() == second.n_id[:50].tolist()
    assert first.n_id.tolist() != second.n_id.tolist()


def test_shuffling_visits_every_input_node_once(data):
    loader = NeighborLoader(data, [1], "train", batch_size=64, shuffle=True)
    seen = torch.cat([b.n_id[: b.batch_size] for b in loader])
    assert seen.tolist() != data.splits["train"].tolist()
    assert sorted(seen.tolist()) == data.splits["train"].tolist()


def test_drop_last(data):
    options = {"input_nodes": torch.arange(105), "batch_size": 50}
    assert [b.batch_size for b in NeighborLoader(data, [2], **options)] == [50, 50, 5]
    loader = NeighborLoader(data, [2], drop_last=True, **options)
    assert len(loader) == 2
    assert [b.batch_size for b in loader] == [50, 50]


def test_input_nodes_may_be_a_mask_indices_a_pair_a_split_or_nothing(data):
    mask = torch.zeros(3000, dtype=torch.bool)
    mask[[7, 9, 2999]] = True

    def first(given):
        batch = next(iter(NeighborLoader(data, [2], given, batch_size=4000)))
        return batch.n_id[: batch.batch_size].tolist(), batch.input_id.tolist()

    assert first(mask) == ([7, 9, 2999], [7, 9, 2999])
    assert first(torch.tensor([9, 7])) == ([9, 7], [0, 1])
    assert first([9, 7]) == ([9, 7], [0, 1])
    assert first((None, torch.tensor([9, 7]))) == ([9, 7], [0, 1])
    assert first((None, mask)) == ([7, 9, 2999], [7, 9, 2999])
    assert first("val")[0] == data.splits["val"].tolist()
    assert first(None)[0] == list(range(3000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_nodes": "tests"}, "no split 'tests'"),
        ({"input_nodes": torch.tensor([3000])}, "ids from 3000 to 3000"),
        ({"input_nodes": torch.tensor([-1])}, "ids from -1"),
        ({"input_nodes": torch.ones(5, dtype=torch.bool)}, "mask of shape"),
        ({"input_nodes": ("paper", torch.tensor([1]))}, "node type 'paper'"),
        ({"batch_size": 0}, "batch_size"),
        ({"staleness": -1}, "staleness"),
        ({"threads": 0}, "threads"),
        ({"ahead": "all"}, "ahead"),
        ({"subgraph_type": "induced"}, "subgraph_type='induced'"),
        ({"time_attr": "time"}, "no times to sort by"),
        ({"time_attr": "when"}, "time_attr must be 'time', which stands for graph.time, not 'when'"),
        ({"weight_attr": "weight"}, "no weights to draw by"),
        ({"weight_attr": "value"}, "weight_attr must be 'weight'"),
        ({"input_time": torch.zeros(3)}, "input_time"),
        ({"temporal_strategy": "last"}, "say by time_attr= where times stand"),
        ({"temporal_strategy": "first"}, "temporal_strategy must be 'uniform' or 'last', not 'first'"),
        ({"temporal": "uniform", "temporal_strategy": "last"}, "say different things"),
        ({"batch_dependency": 2}, "need labor=True"),
        ({"directed": False}, "directed=False"),
        ({"generator": torch.Generator()}, "generator"),
        ({"transform_sampler_output": lambda s: s}, "transform_sampler_output"),
        ({"num_neighbors": {("a", "to", "b"): [3]}}, "dictionary"),
        ({"num_neighbors": []}, "fanouts"),
        ({"num_neighbors": [-2]}, "fanouts"),
    ],
)
def test_what_is_not_supported_is_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, options.pop("num_neighbors", [3]), **options)


def test_an_unknown_keyword_and_an_unknown_object_are_type_errors(data):
    with pytest.raises(TypeError, match="'batchsize'"):
        NeighborLoader(data, [3], batchsize=4)
    with pytest.raises(TypeError, match="not list"):
        NeighborLoader([1, 2], [3])


def test_hints_to_worker_processes_are_taken(data):
    loader = NeighborLoader(
        data,
        [3],
        num_workers=3,
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=True,
        filter_per_worker=True,
        is_sorted=True,
    )
    assert (loader.threads, loader.staleness) == (3, 4)


def test_calling_the_loader_samples_one_batch(data):
    loader = NeighborLoader(data, [5, 3], "train", batch_size=10, seed=4)
    whole = list(loader)
    again = loader(torch.arange(10, 20), epoch=0, batch=1)
    assert fingerprint(again) == fingerprint(whole[1])
    with pytest.raises(IndexError, match="positions among"):
        loader([10**6])


def test_transform_is_applied_to_every_batch(data):
    sizes = list(NeighborLoader(data, [3], "val", batch_size=100, transform=lambda batch: batch.batch_size))
    assert sizes == [100, 100, 100]


def test_a_graph_alone_gives_batches_without_rows(data):
    batch = next(iter(NeighborLoader(data.graph, [3], batch_size=8)))
    assert batch.x is None
    assert batch.y is None


def test_edge_ids_on_demand(data):
    graph = hr.Graph.from_edges([0, 1, 2, 3], [3, 3, 3, 0], edge_id=True)
    batch = next(iter(NeighborLoader(graph, [-1], torch.tensor([3]), edge_ids=True)))
    assert batch.e_id.tolist() == [0, 1, 2]


def test_buffers_are_used_again_and_reported(data):
    loader = NeighborLoader(data, [5, 5], "test", batch_size=100, staleness=2)
    for batch in loader:
        assert batch.x is not None
        del batch
    use = loader.memory()
    assert use.hits > 3 * use.misses
    assert use.in_use == 0
    assert 0 < use.idle <= use.peak
    assert use.idle <= use.limit
    assert loader.peak <= 2


def test_batches_kept_by_the_user_stay_valid(data):
    loader = NeighborLoader(data, [5, 3], "train", batch_size=100, threads=2, staleness=3)
    kept = [(b, b.x, fingerprint(b)) for b in loader]
    assert all(fingerprint(b) == f and torch.equal(x, data.x[b.n_id.long()]) for b, x, f in kept)


def test_stage_times_and_trace_cover_every_batch(data):
    trace = Trace()
    loader = NeighborLoader(data, [5], "train", batch_size=100, ahead="rows", trace=trace)
    list(loader)
    assert [(t.name, t.items) for t in loader.stage_times] == [("sample", 12), ("rows", 12), ("consumer", 12)]
    assert len(trace.spans) == 24


def test_leaving_an_epoch_early_leaves_no_thread(data):
    for _ in NeighborLoader(data, [5, 3], "train", batch_size=10, threads=3, staleness=4):
        break
    assert not [t for t in threading.enumerate() if t.name.startswith("headrace")]


def test_it_works_from_a_memory_map(data, tmp_path):
    data.save(tmp_path / "d")
    mapped = hr.open(tmp_path / "d")
    options = {"input_nodes": "train", "batch_size": 128, "shuffle": True, "seed": 5}
    assert [fingerprint(b) for b in NeighborLoader(mapped, [4, 4], **options)] == [
        fingerprint(b) for b in NeighborLoader(data, [4, 4], **options)
    ]


@pytest.mark.parametrize("staleness", [float("nan"), 1.5, "2"])
def test_staleness_that_is_no_whole_number_is_refused(staleness):
    graph = hr.Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(TypeError, match="staleness must be a whole number"):
        NeighborLoader(graph, [2], staleness=staleness)
