"""Children made by fork compute what their parent does, and never wait for threads that only the parent has."""

import threading

import pytest
import torch

import headrace as hr
from forked import in_child
from headrace.kernels import aggregate, gather
from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.pipeline import Pipeline, Stage
from headrace.ranks import Turns
from headrace.sample import NeighborSampler
from headrace.store import Partitioned
from headrace.train.links.flow.native_step import NativeStep, StepEdges
from headrace.train.links.flow.row_optimizer import RowOptimizer

THREADS = 4
SECONDS = 30


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=20_000, edges=400_000, classes=3, features=32, seed=3, splits=(0.5, 0.2, 0.3))


@pytest.fixture(scope="module")
def sampler(data):
    return NeighborSampler(data.graph, (10, 10), seed=5, threads=THREADS)


def sampled(sampler, batch=0):
    sample = sampler.sample(torch.arange(1_000), 1, batch)
    return [sample.nodes, *(block.indices for block in sample.blocks)]


def summed(data):
    x = data.x.clone().requires_grad_()
    total = aggregate(x, data.graph.indptr, data.graph.indices, threads=THREADS)
    total.square().sum(1).mean().backward()
    return [total.detach(), x.grad]


def built(data):
    graph = hr.Graph.from_edges(*data.graph.edge_index(), data.num_nodes, undirected=True, deduplicate=True, threads=THREADS)
    return [graph.indptr, graph.indices, hr.reorder.rabbit(graph, threads=THREADS)]


def loaded(data, staleness=2):
    ways = {"shuffle": True, "seed": 1, "num_workers": THREADS, "staleness": staleness}
    loader = NeighborLoader(data, [5, 5], torch.arange(4_000), batch_size=512, **ways)
    return [tensor for batch in loader for tensor in (batch.n_id, batch.x, batch.y)]


def linked(data):
    loader = LinkNeighborLoader(data, [5], batch_size=4096, neg_sampling="binary", seed=1, num_workers=THREADS)
    return [tensor for _, batch in zip(range(5), loader, strict=False) for tensor in (batch.n_id, batch.edge_label_index)]


def small():
    return hr.generate.community(nodes=2_000, edges=40_000, classes=3, features=8, seed=3, splits=(0.5, 0.2, 0.3))


def trained():
    options = hr.train.NodeOptions(hidden=8, fanout=(4, 4), epochs=1, batch_size=200, threads=1)
    return torch.tensor(hr.train.node(small(), options=options).test_accuracy)


def linked_model():
    options = hr.train.LinkOptions(dim=8, epochs=1, batch_size=4_000, negatives=64, threads=2, val_edges=50, test_edges=50)
    return [hr.train.link(small(), options=options).rows.table]


WORK = {
    "sampler": lambda data, sampler: sampled(sampler),
    "gather": lambda data, sampler: gather(data.x, torch.arange(20_000).flip(0).repeat(5), threads=THREADS),
    "aggregate": lambda data, sampler: summed(data),
    "CSR building": lambda data, sampler: built(data),
    "loader with threads": lambda data, sampler: loaded(data),
    "loader without threads": lambda data, sampler: loaded(data, staleness=0),
    "link loader": lambda data, sampler: linked(data),
    "node training": lambda data, sampler: trained(),
    "link training": lambda data, sampler: linked_model(),
}


@pytest.mark.parametrize("name", WORK)
def test_a_forked_child_computes_the_same(name, data, sampler):
    wanted = WORK[name](data, sampler)  # on the thread that forks, which now has an OpenMP pool
    found = in_child(lambda: WORK[name](data, sampler), SECONDS)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_link_step_that_has_threads_goes_on_in_a_child():
    """Its helpers are threads of its own: those of the parent are not joined when the child changes or drops them."""
    decoder = hr.nn.DistMult(16, 3)
    rows, place = torch.randn(500, 16), torch.randint(0, 500, (2 * 2_000 + 20 * 50,))
    edges = StepEdges(place, torch.randint(0, 3, (2_000,)), torch.zeros(3, 0), None, 20, 0.0)  # rate 0: relations stay
    step = NativeStep(decoder, RowOptimizer("sgd"), RowOptimizer("sgd"), threads=3)
    wanted = step.deltas(rows, torch.zeros(500, 0), edges)[0]

    def again():
        losses = []
        for step.threads in (3, 2, 3):
            losses.append(step.deltas(rows, torch.zeros(500, 0), edges)[0])
        del step._workspace
        return losses

    assert in_child(again, SECONDS) == [wanted] * 3


def test_children_that_are_forked_while_threads_sample_do_not_hang(data, sampler):
    """A thread may hold the lock of a buffer pool, or be inside a parallel region, when another one forks."""
    wanted, ended = sampled(sampler), threading.Event()

    def go_on():
        while not ended.is_set():
            sampled(sampler)

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            torch.testing.assert_close(in_child(lambda: sampled(sampler), SECONDS), wanted, rtol=0, atol=0)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_an_iterator_of_the_parent_says_that_its_threads_are_not_in_the_child(data):
    iterator = iter(NeighborLoader(data, [5, 5], batch_size=512, num_workers=2))
    next(iterator)

    def go_on():
        with pytest.raises(RuntimeError, match="stayed in the process that forked this one: make a new one here"):
            next(iterator)
        return sum(1 for _ in NeighborLoader(data, [5, 5], batch_size=512, num_workers=2))

    assert in_child(go_on, SECONDS) == 40
    assert sum(1 for _ in iterator) == 39


def test_turns_and_partitions_of_the_parent_are_refused_in_a_child(tmp_path):
    turns = Turns(ahead=2, name="a test", device=torch.device("cpu"))
    Partitioned.create(tmp_path / "rows", 100, 4, partitions=4)
    store = Partitioned.open(tmp_path / "rows", capacity=2)

    def use():
        for work in (lambda: turns.submit(int), store.checkpoint):
            with pytest.raises(RuntimeError, match="stayed in the process that forked this one"):
                work()
        turns.close()
        store.close()
        return True

    assert in_child(use, SECONDS)
    assert turns.submit(lambda: 3).wait() == 3
    turns.close()
    store.close()


class Sampled(torch.utils.data.Dataset):
    """Samples a batch in a worker of torch's loader."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return 4

    def __getitem__(self, batch):
        return sampled(self.sampler, batch)[0].clone()


def test_workers_of_torchs_loader_sample_as_the_parent_does(data, sampler):
    wanted = [sampled(sampler, batch)[0] for batch in range(4)]
    loader = torch.utils.data.DataLoader(
        Sampled(sampler), batch_size=None, num_workers=2, timeout=SECONDS, multiprocessing_context="fork"
    )
    torch.testing.assert_close(list(loader), wanted, rtol=0, atol=0)


def test_workers_of_pygs_loader_sample_as_the_parent_does(data):
    geometric = pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from headrace.sample.pyg import PygSampler

    graph = geometric.data.Data(x=data.x, edge_index=data.graph.edge_index(), num_nodes=data.num_nodes)
    sampler = PygSampler(graph, [5, 5], threads=THREADS)

    def batches(**workers):
        loader = geometric.loader.NodeLoader(graph, sampler, input_nodes=torch.arange(4_000), batch_size=1_000, **workers)
        return [(batch.n_id, batch.edge_index, batch.x) for batch in loader]

    wanted = batches()
    torch.testing.assert_close(batches(num_workers=1, timeout=SECONDS), wanted, rtol=0, atol=0)


def test_a_pipeline_runs_in_a_child_of_a_child():
    def squares():
        return list(Pipeline(range(20), [Stage("square", lambda n: n * n, threads=3)], staleness=4))

    wanted = squares()
    assert in_child(lambda: in_child(squares, SECONDS), 2 * SECONDS) == wanted
