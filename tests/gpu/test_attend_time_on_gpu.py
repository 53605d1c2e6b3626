"""`attend_time` and `TGN` on a GPU against the native kernels in fp64, whose draws are the same."""

import pytest
import torch

from headrace.kernels import attend_time
from headrace.nn import TGN, event_losses
from headrace.sample import Block

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
TYPES = {torch.float64: 1e-10, torch.float32: 1e-4}


def case(degrees, columns, heads, channels, edge, times, dtype, longest, table=50):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    count = int(indptr[-1])
    entries = indptr, torch.randint(0, columns, (count,), dtype=torch.int32), torch.randint(0, longest, (count,))
    leaves = {"query": torch.randn(len(degrees), heads, channels + edge + times) / 4, "x": torch.randn(columns, channels)}
    leaves |= {"time_weight": torch.randn(times), "time_bias": torch.randn(times)}
    more = {"edge_x": torch.randn(table, edge).to(dtype), "edge_id": torch.randint(0, table, (count,))} if edge else {}
    return {name: leaf.to(dtype) for name, leaf in leaves.items()}, entries, more


def run(leaves, entries, more, device, dtype, **options):
    here = {name: leaf.to(device, dtype).requires_grad_() for name, leaf in leaves.items()}
    edges = {name: value.to(device, dtype if name == "edge_x" else value.dtype) for name, value in more.items()}
    named = dict(here)
    out = attend_time(named.pop("query"), *(part.to(device) for part in entries), **named, **edges, **options)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(device, dtype)
    found = torch.autograd.grad(out, list(here.values()), grad)
    return {"out": out.detach().cpu(), **{name: value.cpu() for name, value in zip(here, found, strict=True)}}


@pytest.mark.parametrize(
    ("heads", "channels", "edge", "times", "dtype", "longest"),
    [
        (2, 100, 0, 101, torch.float32, 3),
        (2, 100, 5, 101, torch.float64, 10**6),
        (1, 47, 172, 1, torch.float64, 1000),
        (3, 1, 0, 8, torch.float64, 1000),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_rows_and_gradients_are_those_of_the_cpu(heads, channels, edge, times, dtype, longest, dropout):
    torch.manual_seed(0)
    leaves, entries, more = case([3, 0, 10, 40, 1, 5_000, *[10] * 300, 0], 90, heads, channels, edge, times, dtype, longest)
    options = {"slope": 0.2, "dropout": dropout, "seed": 2**40 + 1}
    found, again = (run(leaves, entries, more, "cuda", dtype, **options) for _ in range(2))
    truth = run(leaves, entries, more, "cpu", torch.float64, **options)
    for name, expected in truth.items():
        assert torch.equal(found[name], again[name]), name
        scale = max(float(expected.abs().max()), 1.0)
        assert float((found[name].double() - expected).abs().max()) <= TYPES[dtype] * scale, name


def test_large_angles_are_rounded_and_reduced_as_on_the_cpu():
    leaves, (indptr, indices, _), more = case([1] * 4000, 5, 1, 2, 0, 9, torch.float32, 3)
    dt = (10.0 ** torch.linspace(0, 9, 4000, dtype=torch.float64)).long()
    leaves["query"] = leaves["query"] * 0
    ours, truth = (run(leaves, (indptr, indices, dt), more, device, torch.float32)["out"] for device in ("cuda", "cpu"))
    assert float((ours - truth).abs().max()) < 1e-6


def test_rows_without_entries():
    leaves, entries, more = case([0, 0], 3, 2, 4, 0, 5, torch.float32, 3)
    found = run(leaves, entries, more, "cuda", torch.float32)
    assert all(not value.any() for value in found.values())
    assert run(*case([], 3, 2, 4, 0, 5, torch.float32, 3), "cuda", torch.float32)["out"].shape == (0, 2, 9)


def batch_of(device):
    torch.manual_seed(1)
    degrees = torch.randint(0, 11, (600,))
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    count = int(indptr[-1])
    block = Block(indptr.to(device), torch.randint(0, 840, (count,), dtype=torch.int32, device=device), 840)
    rows = torch.randn(840, 100, device=device), torch.randn(840, 200, device=device), torch.randint(0, 100, (840,), device=device)
    return block, rows, torch.randint(0, 100, (count,), device=device), torch.randint(0, 840, (840,), device=device)


def loss_of(model, batch):
    block, (memory, mail, mail_dt), dt, row_of = batch
    states = model.update(memory, mail, mail_dt)
    z = model.embed(states, [block], dt, row_of=row_of)
    return event_losses(model.score(z[:200], torch.stack([z[200:400], z[400:]], 1))).mean()


def test_a_step_of_tgn_is_that_of_the_cpu():
    torch.manual_seed(0)
    model = TGN()
    batch = batch_of("cpu")
    expected = loss_of(model, batch)
    truth = torch.autograd.grad(expected, list(model.parameters()))
    block, rows, dt, row_of = batch
    there = (
        Block(block.indptr.cuda(), block.indices.cuda(), 840),
        tuple(row.cuda() for row in rows),
        dt.cuda(),
        row_of.cuda(),
    )
    model.cuda()
    runs = [torch.autograd.grad(loss_of(model, there), list(model.parameters())) for _ in range(2)]
    assert abs(float(loss_of(model, there).detach()) - float(expected.detach())) < 1e-5
    for found, again, right in zip(*runs, truth, strict=True):
        assert torch.equal(found, again)
        torch.testing.assert_close(found.cpu(), right, rtol=0, atol=1e-3 * max(float(right.abs().max()), 1e-3))


def test_a_step_of_tgn_is_captured_and_draws_anew():
    torch.manual_seed(0)
    model, batch = TGN(dropout=0.2).cuda(), batch_of("cuda")
    parameters = list(model.parameters())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(loss_of(model, batch), parameters)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(model, batch)
        gradients = torch.autograd.grad(loss, parameters)
    losses = []
    for _ in range(3):
        graph.replay()
        losses.append(float(loss.detach()))
    assert len(set(losses)) == 3
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
