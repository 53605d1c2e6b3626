import pytest
import torch

import headrace as hr
from headrace.kernels import aggregate, aggregate_reference, dropout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(scope="module")
def graph():
    return hr.generate.community(nodes=500, edges=9_000, classes=3, features=0).graph


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_aggregate_and_its_gradients_equal_the_reference(graph, reduce, weighted, by_id):
    torch.manual_seed(0)
    x = torch.randn(700, 17, dtype=torch.float64)
    ids = torch.randint(0, 700, (graph.num_nodes,)) if by_id else None
    weight = torch.rand(graph.num_edges, dtype=torch.float64) if weighted else None
    grad = torch.randn(graph.num_nodes, 17, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        here = x.detach().to(device).requires_grad_()
        factor = None if weight is None else weight.detach().to(device).requires_grad_()
        kernel = aggregate_reference if device == "cpu" else aggregate
        out = kernel(
            here,
            graph.indptr.to(device),
            graph.indices.to(device),
            reduce=reduce,
            weight=factor,
            ids=None if ids is None else ids.to(device),
        )
        out.backward(grad.to(device))
        results.append([out.detach().cpu(), here.grad.cpu()] + ([] if factor is None else [factor.grad.cpu()]))
    for expected, found in zip(*results, strict=True):
        assert torch.allclose(expected, found, rtol=1e-10, atol=1e-10)


def test_sums_have_the_same_bits_twice(graph):
    x = torch.randn(graph.num_nodes, 64, device="cuda")
    indptr, indices = graph.indptr.cuda(), graph.indices.cuda()
    assert torch.equal(aggregate(x, indptr, indices), aggregate(x, indptr, indices))


def test_tensors_on_two_devices_are_named(graph):
    with pytest.raises(ValueError, match="indptr is on cpu, x is on cuda"):
        aggregate(torch.randn(graph.num_nodes, 4, device="cuda"), graph.indptr, graph.indices)


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_keeps_the_mean_and_its_gradient_the_mask(relu):
    x = torch.randn(1000, 100, device="cuda").requires_grad_()
    out = dropout(x, 0.25, relu=relu, seed=3)
    out.sum().backward()
    passed = (x > 0) if relu else torch.ones_like(x, dtype=torch.bool)
    kept = out != 0
    assert abs(float(kept[passed].float().mean()) - 0.75) < 0.01
    assert torch.allclose(x.grad, torch.where(kept, 4 / 3, 0.0))
    assert torch.equal(out, dropout(x, 0.25, relu=relu, seed=3))
