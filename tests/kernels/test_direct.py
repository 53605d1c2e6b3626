"""Kernels called past torch's dispatcher: what their custom ops give, and the ops themselves wherever somebody traces."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import headrace.kernels._aggregate.aggregate as aggregating
import headrace.kernels._aggregate.ops as aggregate_ops
import headrace.kernels._dropout.dropout as dropping
import headrace.kernels._gather.gather as gathering
from headrace.kernels import aggregate, dropout, gather
from headrace.kernels._direct import direct

IDS = torch.tensor([4, 0, 0, 2, 4])
INDPTR, INDICES = torch.tensor([0, 3, 3, 5, 6]), torch.tensor([0, 4, 0, 1, 2, 4], dtype=torch.int32)


def through_ops(monkeypatch):
    """All kernels called by their ops."""
    monkeypatch.setattr(gathering, "_call", gathering._gather)
    monkeypatch.setattr(aggregating, "aggregate_rows", aggregate_ops._aggregate)
    monkeypatch.setattr(dropping, "_call", dropping._dropout)


def weights():
    return torch.linspace(0.5, 2.0, 6, dtype=torch.float64)


KERNELS = {
    "gather": lambda x, w: gather(x, IDS, threads=2),
    "gather none": lambda x, w: gather(x, IDS[:0]),
    "sum": lambda x, w: aggregate(x, INDPTR, INDICES, weight=w.to(x.dtype)),
    "mean": lambda x, w: aggregate(x, INDPTR, INDICES, reduce="mean", weight=w.to(x.dtype)),
    "max": lambda x, w: aggregate(x, INDPTR, INDICES, reduce="max"),
    "sum of ids": lambda x, w: aggregate(x, INDPTR, INDICES, ids=IDS, weight=w.to(x.dtype)),
    "dropout": lambda x, w: dropout(x, 0.4, seed=3),
    "dropout relu": lambda x, w: dropout(x, 0.4, seed=3, relu=True),
    "all dropped": lambda x, w: dropout(x, 1.0, seed=3),
}
kernels = pytest.mark.parametrize("kernel", KERNELS)


def values(width=7, dtype=torch.float64):
    return torch.randn(5, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def run(kernel, x, w):
    """Rows and the gradients of x and w, whichever are wanted."""
    out = KERNELS[kernel](x, w)
    wanted = [t for t in (x, w) if t.requires_grad]
    if not out.requires_grad:
        return [out]
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, wanted, grad, allow_unused=True)]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


@kernels
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", ["", "x", "w", "xw"])
@pytest.mark.parametrize("width", [1, 47])
def test_rows_and_gradients_are_those_of_the_op(kernel, dtype, wanted, width, monkeypatch):
    def all_of_it():
        x, w = values(width, dtype).requires_grad_("x" in wanted), weights().requires_grad_("w" in wanted)
        return run(kernel, x, w)

    found = all_of_it()
    with monkeypatch.context() as patch:
        through_ops(patch)
        expected = all_of_it()
    assert_equal(found, expected)
    assert found[0].requires_grad == expected[0].requires_grad


@kernels
def test_gradients_are_the_true_ones(kernel):
    def positive(x, w):  # away from relu's corner
        return KERNELS[kernel](x + 3.0, w)

    assert torch.autograd.gradcheck(positive, (values(3).requires_grad_(), weights().requires_grad_()))


@kernels
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_the_op_and_gives_the_same(kernel, backend):
    expected = run(kernel, values().requires_grad_(), weights().requires_grad_())
    torch.compiler.reset()
    compiled = torch.compile(KERNELS[kernel], fullgraph=True, backend=backend)
    x, w = values().requires_grad_(), weights().requires_grad_()
    out = compiled(x, w)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    found = [out, *torch.autograd.grad(out, [x, w], grad, allow_unused=True)]
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None) or not (a if a is not None else b).any()  # compiled, an unused gradient may be zeros
        assert a is None or b is None or torch.equal(a, b)


class Seen(TorchDispatchMode):
    """Notes the ops of ours that come by."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "headrace":
            self.ops.append(func._opname)
        return func(*args, **(kwargs or {}))


@kernels
def test_who_listens_to_the_dispatcher_sees_the_op(kernel):
    expected = KERNELS[kernel](values(), weights())
    with Seen() as seen:
        found = KERNELS[kernel](values(), weights())
    assert torch.equal(found, expected)
    assert seen.ops == [{"g": "gather", "s": "aggregate", "m": "aggregate"}.get(kernel[0], "dropout")]


def test_plain_eager_code_does_not_go_through_the_op(monkeypatch):
    def refused(*_):
        raise AssertionError("the op was called")

    call = direct(refused, gathering._made, gathering._remember, gathering._gradient(gathering._sum_by_id), twice=True)
    monkeypatch.setattr(gathering, "_call", call)
    x = values().requires_grad_()
    gather(x, IDS).sum().backward()
    assert x.grad[4].tolist() == [2.0] * 7
    with torch.inference_mode():
        assert torch.equal(gather(values(), IDS), values()[IDS])
    with pytest.raises(AssertionError, match="the op was called"), Seen():
        gather(x, IDS)


@kernels
def test_fake_tensors_have_the_shapes_inside_their_mode_and_outside(kernel):
    expected = KERNELS[kernel](values(), weights())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, w = mode.from_tensor(values()), mode.from_tensor(weights())
        inside = KERNELS[kernel](x, w)
    for found in (inside, _outside(kernel, mode, x, w)):
        assert isinstance(found, FakeTensor)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _outside(kernel, mode, x, w):
    if kernel.startswith("dropout") or kernel == "all dropped":
        return KERNELS[kernel](x, w)
    ids, indptr, indices = (mode.from_tensor(t) for t in (IDS, INDPTR, INDICES))
    if kernel.startswith("gather"):
        return gather(x, ids if kernel == "gather" else ids[:0])
    options = {"sum": {"weight": w}, "mean": {"weight": w, "reduce": "mean"}, "max": {"reduce": "max"}}
    return aggregate(x, indptr, indices, **options.get(kernel, {"ids": ids, "weight": w}))


@pytest.mark.parametrize("kernel", ["gather", "dropout"])
def test_batched_code_takes_the_op(kernel, capfd):
    """torch has a loop for ops without a rule of their own, and says so on stderr."""
    stacked = torch.stack([values(), values() + 1])
    found = torch.func.vmap(lambda x: KERNELS[kernel](x, weights()))(stacked)
    assert torch.equal(found, torch.stack([KERNELS[kernel](x, weights()) for x in stacked]))


@pytest.mark.parametrize("kernel", ["gather", "sum", "dropout"])
def test_function_transforms_of_gradients_say_what_is_missing(kernel):
    """A custom op has no gradient under torch.func: torch says so, and no wrong one is given."""
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: KERNELS[kernel](x, weights()).sum())(values())


def test_traced_graphs_have_the_op():
    traced = make_fx(lambda x: gather(dropout(x, 0.4, seed=3), IDS))(values())
    targets = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert {"headrace.gather.default", "headrace.dropout.default"} <= targets
    assert torch.equal(traced(values()), gather(dropout(values(), 0.4, seed=3), IDS))


@kernels
def test_second_gradients_are_right_or_refused(kernel):
    x, w = values(3).requires_grad_(), weights().requires_grad_()
    if kernel.startswith("gather"):
        assert torch.autograd.gradgradcheck(lambda x: KERNELS[kernel](x, w) ** 2, x)
        return
    out = (KERNELS[kernel](x, w) ** 2).sum()
    with pytest.raises(RuntimeError, match=r"create_graph=True asks for gradients of the gradient of headrace::"):
        torch.autograd.grad(out, x, create_graph=True)


@kernels
def test_without_gradients_nothing_is_recorded_and_calls_repeat(kernel):
    x, w = values().requires_grad_(), weights().requires_grad_()
    with torch.no_grad():
        first, second = KERNELS[kernel](x, w), KERNELS[kernel](x, w)
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert first.grad_fn is None
    assert torch.equal(KERNELS[kernel](x, w).detach(), first)


@kernels
def test_a_backward_pass_runs_once_unless_it_is_kept(kernel):
    x, w = values().requires_grad_(), weights().requires_grad_()
    out = KERNELS[kernel](x, w)
    grad = torch.ones_like(out)
    first = torch.autograd.grad(out, x, grad, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(out, x, grad)[0], first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, x, grad)


@kernels
def test_what_was_saved_goes_with_the_result(kernel):
    x, w = values().requires_grad_(), weights().requires_grad_()
    inner = x * 2
    held = [weakref.ref(inner)]
    out = KERNELS[kernel](inner, w)
    held.append(weakref.ref(out))
    gc.disable()  # nothing may need it
    try:
        del inner, out
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()


def test_a_result_changed_in_place_is_noticed():
    x = values().requires_grad_()
    out = dropout(x, 0.4, seed=3, relu=True)  # whose gradient reads it
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
