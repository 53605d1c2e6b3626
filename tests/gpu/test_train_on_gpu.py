import pytest
import torch

import headrace as hr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=4_000, edges=80_000, classes=5, features=32)


@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("full_batch", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_model_learns_on_the_gpu(data, model, full_batch, precision):
    options = hr.train.NodeOptions(
        model=model,
        hidden=64,
        layers=2,
        full_batch=full_batch,
        epochs=60 if full_batch else 8,
        batch_size=100,
        lr=0.01,
        dropout=0.2,
        precision=precision,
        device="cuda",
    )
    result = hr.train.node(data, options=options)
    assert next(result.model.parameters()).is_cuda
    assert result.test_accuracy > 0.75


def test_a_run_goes_on_on_the_gpu_from_its_checkpoint(data, tmp_path):
    options = hr.train.NodeOptions(hidden=32, fanout=(5, 5), epochs=3, batch_size=100, device="cuda", checkpoint_seconds=0)
    whole = hr.train.node(data, options=options, out=tmp_path / "whole")

    class StopAt(hr.train.Watcher):
        def step(self, event, clock):
            if event.step == 6:
                raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        hr.train.node(data, options=options, out=tmp_path / "cut", watcher=StopAt())
    resumed = hr.train.node(data, options=options, out=tmp_path / "cut", resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_layers_on_the_gpu_equal_those_on_the_cpu(data):
    batch = next(iter(hr.loader.NeighborLoader(data, [5, 5], "train", batch_size=50)))
    for kind in ("sage", "gcn", "gin", "gat", "gatv2"):
        model = hr.nn.GNN(32, 64, 5, layers=2, conv=kind).eval()
        with torch.no_grad():
            here = model(batch)
            there = model.cuda()(batch.to("cuda")).cpu()
        assert torch.allclose(here, there, atol=1e-4), kind


@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("nodes", [None, "test"])
def test_exact_inference_on_the_gpu_is_that_of_the_cpu(data, model, nodes):
    torch.manual_seed(0)
    net = hr.nn.GNN(32, 64, 5, layers=2, conv=model).eval()
    wanted = None if nodes is None else data.splits[nodes]
    expected = hr.train.infer(net, data, wanted)
    found = hr.train.infer(net.cuda(), data, wanted)
    assert found.device.type == "cpu"
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-3)
