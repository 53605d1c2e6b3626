"""Tensor work is done elsewhere: by other processes, while the server computes no matrix product; the bits are those of threads."""

import os

import pytest
import torch

import headrace as hr
from elastic_cases import worker_path
from elastic_servers import awkward_dataset, model_of, train
from headrace.cluster.elastic import LambdaExecutor, RayExecutor
from headrace.train import NodeOptions, Watcher, node

INTERVALS, LAYERS = 4, 2
PRODUCTS = ["linear", "bilinear"]


@pytest.fixture
def no_products(monkeypatch):
    """Matrix products raise in this process, whoever asks for them."""

    def refuse(*args, **more):
        raise AssertionError("a matrix product in the server's process")

    for name in PRODUCTS:
        monkeypatch.setattr(torch.nn.functional, name, refuse)
    for name in ("addmm", "mm", "matmul", "bmm", "baddbmm", "einsum"):
        monkeypatch.setattr(torch, name, refuse)
    for name in ("__matmul__", "__rmatmul__", "matmul", "mm", "addmm", "addmm_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch.nn.Linear, "forward", refuse)


@pytest.fixture
def lambda_endpoint(_credentials):
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    pytest.importorskip("awslambdaric", reason="needs headrace[aws]")
    from headrace.cluster.local_lambda import LocalLambda

    with LocalLambda("headrace.cluster.elastic.workers.handler.handle", environment={"PYTHONPATH": worker_path()}) as aws:
        yield aws.endpoint_url


@pytest.fixture
def lambda_executor(lambda_endpoint):
    with LambdaExecutor(2, endpoint_url=lambda_endpoint) as executor:
        yield executor


@pytest.fixture
def two_of_ray(ray):
    with RayExecutor(2, cpus=0) as executor:
        yield executor


def test_products_would_raise_in_this_process(no_products):
    """Threads are no other process, so the fixture is seen to work."""
    with pytest.raises(RuntimeError, match="a matrix product in the server's process"):
        train(model_of("sage", layers=LAYERS), awkward_dataset(), intervals=INTERVALS)


@pytest.mark.parametrize("workers", [pytest.param("two_of_ray", marks=pytest.mark.slow), "lambda_executor"])
def test_an_epoch_is_one_call_for_each_task_in_other_processes(request, workers):
    executor = request.getfixturevalue(workers)
    data, cases = awkward_dataset(), [("sage", "sync"), ("gcn", "pipe"), ("gin", "pipe")]
    models = {kind: model_of(kind, layers=LAYERS, residual=True) for kind, _ in cases}
    wanted = {kind: train(models[kind], data, intervals=INTERVALS, flow=flow)[0] for kind, flow in cases}
    pids = request.getfixturevalue("worker_pids")
    request.getfixturevalue("no_products")
    for kind, flow in cases:
        found, (done,) = train(models[kind], data, intervals=INTERVALS, flow=flow, executor=executor)
        assert done.calls == INTERVALS * (2 * LAYERS - 1)
        assert all(torch.equal(found[name], wanted[kind][name]) for name in found)
    assert len(pids) == len(cases) * INTERVALS * (2 * LAYERS - 1)
    assert os.getpid() not in pids


@pytest.fixture
def worker_pids(monkeypatch):
    """Processes that computed the results which were read, one for each."""
    from headrace.cluster.elastic.control import launches

    pids, read = [], launches.read_result

    def kept(result, key=None):
        facts, arrays = read(result, key)
        pids.append(facts["pid"])
        return facts, arrays

    monkeypatch.setattr(launches, "read_result", kept)
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ray", "lambda"])
def test_a_training_by_other_processes_has_the_weights_of_threads(request, kind, monkeypatch):
    """By options alone, with products refused here."""
    data = hr.generate.community(nodes=200, edges=800, classes=4, features=13, seed=1)
    usual = {"model": "gcn", "hidden": 8, "layers": LAYERS, "epochs": 3, "full_batch": True, "flow": "pipe", "intervals": INTERVALS}
    wanted = node(data, NodeOptions(**usual), watcher=Watcher()).model.state_dict()
    if kind == "ray":
        request.getfixturevalue("ray")
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", request.getfixturevalue("lambda_endpoint"))
    request.getfixturevalue("no_products")
    found = node(data, NodeOptions(**usual, executor=kind, workers=2), watcher=Watcher()).model.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
