"""GAT and GATv2 by tasks: an epoch is one pass of autograd over the whole graph, with the same dropout of coefficients."""

import copy
import json
import random
import time

import pytest
import torch

import elastic_training
import headrace as hr
from headrace.cluster import ParameterStore, ThreadExecutor, cut
from headrace.cluster.elastic import Controller, Labels, Neighborhood, Server, TaskError, pack_task, read_result, run_task, vertex
from headrace.cluster.elastic.layers.positions import positions_back, row_begins
from headrace.cluster.elastic.neighborhood import bytes_per_epoch
from headrace.loader import WholeBatch
from headrace.nn import GNN
from headrace.nn.node_losses import node_loss
from headrace.train import Watcher, node
from rank_jobs import Job
from rank_threads import ThreadExchange, on_every_rank
from topology_cases import awkward_graph

MODELS = ["gat", "gatv2"]
FEATURES, CLASSES, LAYERS = 13, 4, 3
SERVERS = 3


def dataset_of(graph, seed=0):
    """A third of the nodes train."""
    draw, nodes = torch.Generator().manual_seed(seed), graph.num_nodes
    x, y = torch.randn(nodes, FEATURES, generator=draw), torch.randint(CLASSES, (nodes,), generator=draw)
    train = torch.randperm(nodes, generator=draw)[: nodes // 3].sort().values
    return hr.Dataset(graph, x=x.double(), y=y, splits={"train": train})


def awkward_dataset(nodes=150):
    """Repeated edges, loops, a hub and isolated nodes."""
    return dataset_of(awkward_graph(nodes, 500, hub=100))


def model_of(kind, *, layers=LAYERS, **more):
    torch.manual_seed(1)
    usual = {"dropout": 0.5, "input_dropout": 0.3, "heads": 4}
    return GNN(FEATURES, 8, CLASSES, layers=layers, conv=kind, **(usual | more)).double()


def expected(model, data, epoch=0):
    """Gradients of one pass of autograd over the whole graph."""
    model = copy.deepcopy(model)
    torch.manual_seed(100 + epoch)
    seeds = data.splits["train"]
    node_loss(model(WholeBatch(data, len(model.layers)))[seeds], data.y[seeds]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


class Epoch:
    """What a server came to in an epoch."""

    def __init__(self, model, data, number, servers, exchange, *, intervals, flow, validate, threads=2):
        part = cut(data, number, parts=servers)
        self.at = Neighborhood(part, intervals=intervals, exchange=exchange)
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        store = ParameterStore(weights, lambda weights, total: weights, intervals=self.at.own_intervals)
        seeds = part.splits["train"].long()
        labels = Labels(part.owners.locate(seeds)[1], data.y[seeds], None)
        with ThreadExecutor(threads) as executor, Controller(executor) as controller:
            server = Server(model, self.at, part.x, labels, store, controller, draws=lambda epoch: 100 + epoch)
            server.train(range(1), flow=flow)
            self.calls, self.total = controller.counts.calls - controller.counts.relaunched, store.take()
            self.weight = sum(float(numbers[1]) for numbers in server.totals[0].values())
            self.widths, self.sent = server.work.widths, 0 if exchange is None else exchange.traffic["rows"].sent
            store.step(self.total)
            self.predicted = server.validate(1) if validate else None
            server.close()


def train(model, data, *, servers=1, intervals=7, flow="sync", validate=False):
    """An epoch: the gradients of the loss, and each server's `Epoch`."""

    def work(ranks):
        exchange = None if servers == 1 else ThreadExchange(ranks)
        return Epoch(model, data, ranks.rank, servers, exchange, intervals=intervals, flow=flow, validate=validate)

    done = on_every_rank(servers, work)
    for one in done:
        if isinstance(one, Exception):
            raise one
    weight = sum(one.weight for one in done)
    return {name: sum(one.total[name] for one in done) / weight for name in done[0].total}, done


def distance(found, wanted):
    """The largest difference, relative to the largest of all gradients."""
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    return max(float((found[name] - gradient).abs().max()) for name, gradient in wanted.items()) / largest


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("intervals", [1, 7, 32])
@pytest.mark.parametrize("more", [{}, {"residual": True, "norm": "layer"}, {"dropout": 0.0, "input_dropout": 0.0}])
def test_gradients_are_those_of_autograd(kind, intervals, more):
    data, model = awkward_dataset(), model_of(kind, **more)
    total, (done,) = train(model, data, intervals=intervals)
    assert distance(total, expected(model, data)) < 1e-12
    assert done.calls == intervals * (2 * LAYERS + 1)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("intervals", [1, 7, pytest.param(32, marks=pytest.mark.slow)])
def test_several_servers_have_the_gradients_of_one(kind, servers, intervals):
    data, model = awkward_dataset(), model_of(kind, residual=True, norm="layer")
    total, done = train(model, data, servers=servers, intervals=intervals, flow="pipe")
    assert distance(total, expected(model, data)) < 1e-12
    assert [one.calls for one in done] == [intervals * (2 * LAYERS + 1)] * servers


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("servers", [1, 2])
def test_any_number_of_layers(kind, layers, servers):
    data, model = awkward_dataset(), model_of(kind, layers=layers)
    total, _ = train(model, data, servers=servers, intervals=4)
    assert distance(total, expected(model, data)) < 1e-12


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, 3])
def test_a_graph_with_nothing_but_loops_and_isolated_nodes(kind, servers):
    loops = torch.arange(0, 20, 2)
    data, model = dataset_of(hr.Graph.from_edges(loops, loops, 20)), model_of(kind, layers=2, residual=True)
    total, _ = train(model, data, servers=servers, intervals=4)
    assert distance(total, expected(model, data)) < 1e-12


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_more_intervals_than_rows(kind, servers):
    data, model = dataset_of(awkward_graph(11, 30, hub=10)), model_of(kind)
    total, _ = train(model, data, servers=servers, intervals=16)
    assert distance(total, expected(model, data)) < 1e-12


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, 2])
def test_pipe_has_the_bits_of_sync_also_when_tasks_take_odd_times(kind, servers, monkeypatch):
    data, model = awkward_dataset(), model_of(kind, residual=True)
    wanted, _ = train(model, data, servers=servers, flow="sync")
    draw, rows = random.Random(4), vertex._Call.rows

    def sleepy(call):
        time.sleep(draw.random() * 0.01)
        return rows(call)

    for _ in range(3):
        found, _ = train(model, data, servers=servers, flow="pipe")
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        monkeypatch.setattr(vertex._Call, "rows", sleepy)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_validation_predicts_what_the_model_does(kind, servers):
    data, model = awkward_dataset(), model_of(kind, residual=True, norm="layer")
    _, done = train(model, data, servers=servers, validate=True)
    with torch.no_grad():
        wanted = model.eval()(WholeBatch(data, LAYERS))
    for one in done:
        assert float((one.predicted - wanted[one.at.ids]).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("flow", ["sync", "pipe"])
def test_servers_send_the_bytes_of_the_formula(kind, flow):
    """s (B sum of (W_l + P_l) + B' sum of (W_l + 3 A_l + T_l)), see `AttentionLayers`."""
    _, done = train(model_of(kind), awkward_dataset(), servers=SERVERS, flow=flow)
    heads, wide = [4, 4, 1], [8, 8, CLASSES]
    scores, readers = (heads, heads) if kind == "gat" else ([0, 0, 0], wide)
    for one in done:
        read, read_back = (sum(map(len, reading.told)) for reading in (one.at.forward, one.at.backward))
        forward, back = sum(wide) + sum(scores), sum(wide) + 3 * sum(heads) + sum(readers)
        assert one.sent == 8 * (read * forward + read_back * back) > 0
        assert one.sent == bytes_per_epoch(one.at, one.widths[0], 8, back=one.widths[1])


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_know_where_their_entries_stand_in_the_whole_graph(servers):
    data = awkward_dataset(nodes=50)
    graph = data.graph

    def work(ranks):
        exchange = None if servers == 1 else ThreadExchange(ranks)
        at = Neighborhood(cut(data, ranks.rank, parts=servers), intervals=2, exchange=exchange)
        begins = row_begins(at)
        return at, begins, positions_back(at, begins)

    seen = []
    for at, begins, positions in on_every_rank(servers, work):
        assert torch.equal(begins, graph.indptr[:-1][at.ids])
        sources = torch.repeat_interleave(at.ids, at.backward.indptr.diff())
        assert torch.equal(graph.indices[positions].long(), sources)
        seen.append(positions)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(graph.num_edges))


def test_a_task_names_the_array_that_it_lacks():
    model = model_of("gat", residual=True)
    options = {"model": json.dumps(model.config), "layer": 1, "seed": 0, "training": False, "inputs": True}
    of_task = vertex.vertex_of(list(model.layers), 1)
    arrays = {vertex.WEIGHT + name: weight.detach() for name, weight in of_task.learned.items()}
    arrays |= {"mixed": torch.zeros(3, 8, dtype=torch.float64), "skipped": torch.zeros(3, 8, dtype=torch.float64)}
    assert set(read_result(run_task(pack_task("forward", options, arrays)))[1]) == {"sources", "targets", "skipped"}
    for missing in arrays:
        with pytest.raises(TaskError, match=missing):
            read_result(run_task(pack_task("forward", options, {n: array for n, array in arrays.items() if n != missing})))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights of trainings by three server processes."""
    folder = tmp_path_factory.mktemp("servers")
    cases = [f"{model}:{flow}:{intervals}" for model in MODELS for flow, intervals in (("sync", 7), ("pipe", 7), ("pipe", 32))]
    job = Job(elastic_training.__file__, [folder, *cases], size=SERVERS, folder=folder)
    try:
        assert job.wait(300) == [0] * SERVERS, "\n".join(job.said(rank) for rank in range(SERVERS))
    finally:
        job.end()
    return {case: torch.load(folder / f"{case.replace(':', '-')}.pt") for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_weights_after_20_steps_are_those_of_full_batch(trained, model):
    wanted = node(elastic_training.dataset(), elastic_training.options(model), watcher=Watcher()).model.state_dict()
    for how in ("sync:7", "pipe:7", "pipe:32"):
        assert distance(trained[f"{model}:{how}"], wanted) < 1e-5
    one = node(elastic_training.dataset(), elastic_training.options(model, flow="pipe", intervals=7), watcher=Watcher())
    assert distance(one.model.state_dict(), wanted) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_pipe_has_the_weights_of_sync_to_the_bit(trained, model):
    sync, pipe = trained[f"{model}:sync:7"], trained[f"{model}:pipe:7"]
    assert all(torch.equal(sync[name], pipe[name]) for name in sync)
