"""An epoch by tasks is one pass of autograd over the whole graph, whatever the intervals, the servers and the flow."""

import random
import threading
import time
from concurrent.futures import Executor, Future

import pytest
import torch

import headrace as hr
from elastic_servers import CLASSES, FEATURES, awkward_dataset, distance, expected, model_of, predicted, train
from headrace.cluster.elastic import Step, check_calls, vertex
from headrace.store import TableOwners

MODELS = ["sage", "gcn", "gin"]
CLASS_WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("intervals", [1, 7, 32])
@pytest.mark.parametrize("more", [{}, {"residual": True, "norm": "layer"}], ids=["plain", "residual"])
def test_gradients_are_those_of_autograd(kind, intervals, more):
    data, model = awkward_dataset(), model_of(kind, **more)
    loss, wanted = expected(model, data, CLASS_WEIGHTS)
    total, (done,) = train(model, data, intervals=intervals, classes=CLASS_WEIGHTS)
    assert distance(total, wanted) < 1e-12
    assert done.loss / done.weight == pytest.approx(loss, rel=1e-12)
    assert done.calls == intervals * (2 * 3 - 1)


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_in_fp32(kind):
    """Within 1e-6 of the largest, or twice what one pass in fp32 is off that in fp64."""
    data, model = awkward_dataset(dtype=torch.float32), model_of(kind, dtype=torch.float32)
    _, plain = expected(model, data)
    exact_data = hr.Dataset(data.graph, x=data.x.double(), y=data.y, splits=data.splits)
    _, exact = expected(model.double(), exact_data)
    total, _ = train(model.float(), data)
    assert distance(total, exact) <= max(1e-6, 2 * distance(plain, exact))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("flow", ["sync", "pipe"])
@pytest.mark.parametrize("servers", [2, 3])
def test_several_servers_have_the_gradients_of_one(kind, flow, servers):
    data, model = awkward_dataset(), model_of(kind, residual=True)
    _, wanted = expected(model, data)
    total, done = train(model, data, servers=servers, flow=flow, intervals=5)
    assert distance(total, wanted) < 1e-12
    assert [one.calls for one in done] == [5 * 5] * servers
    for one in done:
        assert all(len(rows) == one.at.forward.num_src < data.num_nodes for rows in one.rows.values())


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_any_number_of_layers(layers):
    data, model = awkward_dataset(), model_of("sage", layers=layers)
    _, wanted = expected(model, data)
    total, (done,) = train(model, data, intervals=4)
    assert distance(total, wanted) < 1e-12
    assert done.calls == 4 * (2 * layers - 1)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, 2])
def test_pipe_has_the_bits_of_sync_also_when_tasks_take_odd_times(kind, servers, monkeypatch):
    data, model = awkward_dataset(), model_of(kind)
    wanted, _ = train(model, data, servers=servers, flow="sync")
    draw, rows = random.Random(4), vertex._Call.rows

    def sleepy(call):
        time.sleep(draw.random() * 0.01)
        return rows(call)

    for _ in range(3):
        found, _ = train(model, data, servers=servers, flow="pipe")
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        monkeypatch.setattr(vertex._Call, "rows", sleepy)


@pytest.mark.parametrize(("flow", "patience"), [("pipe", 30.0), ("sync", 0.2)])
def test_in_pipe_an_interval_ends_its_epoch_while_another_one_is_in_its_first_task(flow, patience, monkeypatch):
    data = _dataset_of(hr.Graph.from_edges([], [], 20))
    ended, waited, rows = threading.Event(), [], vertex._Call.rows

    def wait_for_the_first_interval(call):
        if not call.wanted and call.ids is not None and 0 not in call.ids:
            waited.append(ended.wait(patience))
        return rows(call)

    def observe(step, task):
        if step == Step.RETIRED and str(task) == "0.b0.0":
            ended.set()

    monkeypatch.setattr(vertex._Call, "rows", wait_for_the_first_interval)
    owners = TableOwners(torch.zeros(20, dtype=torch.int64), 1)
    train(model_of("sage", layers=2), data, owners=owners, flow=flow, intervals=2, observe=observe)
    assert set(waited) == {flow == "pipe"}


class AtOnce(Executor):
    """Computes a task as it is submitted."""

    def submit(self, function, payload, /):
        future = Future()
        future.set_result(function(payload))
        return future


@pytest.mark.parametrize("flow", ["sync", "pipe"])
@pytest.mark.parametrize("servers", [1, 3])
def test_no_result_waits_until_a_stage_is_launched(flow, servers):
    data, model = awkward_dataset(), model_of("gcn")
    wanted, _ = train(model, data, servers=servers, flow=flow)
    seen = []  # tasks that were launched and not retired, of each server, at every step
    lock, under_way = threading.Lock(), {}

    def observe(step, task):
        with lock:
            mine = under_way.setdefault(threading.get_ident(), set())
            if step == Step.LAUNCHED:
                mine.add(task)
            elif step == Step.RETIRED:
                mine.discard(task)
            seen.append(len(mine))

    found, _ = train(model, data, servers=servers, flow=flow, executor=AtOnce(), observe=observe, validate=True)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert max(seen) == 1


def _dataset_of(graph):
    """All nodes train."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(graph.num_nodes, FEATURES, generator=draw), torch.randint(CLASSES, (graph.num_nodes,), generator=draw)
    return hr.Dataset(graph, x=x.double(), y=y, splits={"train": torch.arange(graph.num_nodes)})


@pytest.mark.parametrize("kind", MODELS)
def test_a_graph_with_nothing_but_loops_and_isolated_nodes(kind):
    loops = torch.arange(0, 20, 2)
    data = _dataset_of(hr.Graph.from_edges(loops, loops, 20))
    model = model_of(kind, layers=2)
    _, wanted = expected(model, data)
    for servers in (1, 3):
        total, _ = train(model, data, servers=servers, intervals=4)
        assert distance(total, wanted) < 1e-12


def test_more_intervals_than_rows():
    data, model = awkward_dataset(nodes=11, edges=30), model_of("sage")
    _, wanted = expected(model, data)
    for servers in (1, 3):
        total, done = train(model, data, servers=servers, intervals=16)
        assert distance(total, wanted) < 1e-12
        assert [one.calls for one in done] == [16 * 5] * servers


def test_a_server_without_training_nodes_and_one_without_rows():
    data, model = awkward_dataset(), model_of("gcn")
    owner = torch.ones(data.num_nodes, dtype=torch.int64)
    owner[data.splits["train"]] = 0
    _, wanted = expected(model, data)
    for flow in ("sync", "pipe"):
        total, done = train(model, data, servers=3, owners=TableOwners(owner, 3), flow=flow, intervals=3)
        assert distance(total, wanted) < 1e-12
        assert [one.weight for one in done] == [len(data.splits["train"]), 0, 0]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_validation_predicts_what_the_model_does(kind, servers):
    data, model = awkward_dataset(), model_of(kind, residual=True, norm="layer")
    wanted = predicted(model, data)
    _, done = train(model, data, servers=servers, validate=True)
    for one in done:
        assert float((one.predicted - wanted[one.at.ids]).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_an_interval_too_large_for_a_call_is_refused_with_the_rows_that_fit(kind):
    sizes = []

    class Weighed(AtOnce):
        def submit(self, function, payload, /):
            future = super().submit(function, payload)
            sizes.append(max(len(payload), len(future.result())))
            return future

    data, model = awkward_dataset(nodes=4000, edges=12_000), model_of(kind)
    _, (done,) = train(model, data, intervals=2, executor=Weighed(), validate=True)
    check_calls(done.server, 2 * max(sizes))
    with pytest.raises(ValueError, match=r"a call carries \d+ bytes, which is \d+ rows of this model, and an interval has up to"):
        check_calls(done.server, max(sizes) - 1)  # it never lets pass what is too large
    with pytest.raises(ValueError, match=r"which is 0 rows of this model.*: give --objects"):
        check_calls(done.server, 100)
