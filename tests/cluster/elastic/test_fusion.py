"""The last layer, the loss and its backward pass in one task or in two: the same bits, and another number of calls."""

import pytest
import torch

from elastic_servers import CLASSES, awkward_dataset, distance, expected, model_of, train
from headrace import generate
from headrace.cluster.elastic import Direction, Schedule, stages
from headrace.cluster.elastic.task import unfused
from headrace.train import NodeOptions, Watcher, node

CLASS_WEIGHTS = torch.linspace(0.5, 2.0, CLASSES)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("servers", [1, 2])
def test_gradients_are_those_of_autograd_and_bits_those_of_fused_tasks(kind, layers, servers):
    data, model = awkward_dataset(), model_of(kind, layers=layers)
    how = {"intervals": 4, "servers": servers, "classes": CLASS_WEIGHTS, "flow": "pipe"}
    loss, wanted = expected(model, data, CLASS_WEIGHTS)
    found, apart = train(model, data, fusion=False, **how)
    fused, together = train(model, data, **how)
    assert distance(found, wanted) < 1e-12
    assert all(torch.equal(found[name], fused[name]) for name in fused)
    assert sum(one.loss for one in apart) == sum(one.loss for one in together)
    assert sum(one.loss for one in apart) / sum(one.weight for one in apart) == pytest.approx(loss, rel=1e-12)
    assert [one.calls for one in apart] == [4 * 2 * layers] * servers
    assert [one.calls for one in together] == [4 * (2 * layers - 1)] * servers


@pytest.mark.parametrize(("model", "flow"), [("gat", "pipe"), ("gatv2", "sync"), ("sage", "async")])
def test_trainings_without_it(model, flow):
    data = generate.community(nodes=300, edges=1500, classes=4, features=16, seed=1)
    how = {"model": model, "hidden": 16, "heads": 4, "layers": 2, "epochs": 4, "full_batch": True, "flow": flow, "threads": 1}
    fused, apart = (node(data, NodeOptions(**how, fusion=fusion), watcher=Watcher()) for fusion in (True, False))
    if flow == "async":  # depends on time
        assert all(bool(torch.isfinite(weight).all()) for weight in apart.model.state_dict().values())
        return
    weights = fused.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in apart.model.state_dict().items())


def test_the_backward_pass_of_the_last_layer_waits_for_its_own_interval_alone():
    schedule = Schedule(unfused(stages(1)), {0: {0, 1}, 1: {1}}, {0: {0}, 1: {0, 1}}, intervals=2, epochs=range(1))
    for task in schedule.ready():
        schedule.start(task)
        if task.interval:
            schedule.done(task)
    assert [(task.direction, task.interval) for task in schedule.ready()] == [(Direction.BACKWARD, 1)]
