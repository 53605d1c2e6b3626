"""The tensor work of a layer: forward, turn and backward against autograd of the whole layer; odd arrays give a sentence."""

import contextlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_servers import CLASSES, FEATURES, awkward_dataset, model_of
from headrace.cluster.elastic import TaskError, Vertex, pack_task, read_result, run_task
from headrace.cluster.elastic.vertex import GRADIENT, WEIGHT, weight_arrays
from headrace.nn.node_losses import loss_weight, node_loss

MODELS = ["sage", "gcn", "gin"]
MORE = [{}, {"residual": True, "norm": "layer"}]
SEED = 77


class Case:
    """A layer over a whole graph, and the arrays of a task for all of its rows."""

    def __init__(self, kind, layer=0, **more):
        self.data, self.model = awkward_dataset(nodes=40), model_of(kind, layers=2, input_dropout=0.0, **more)
        self.layer, self.number = self.model.layers[layer], layer
        width = FEATURES if layer == 0 else 8
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(40, width, generator=draw, dtype=torch.float64)
        self.ids = torch.randperm(40, generator=draw)
        self.summed = self.layer.conv.fixed_sum().make(self.x, self.data.graph)
        weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        self.arrays = weight_arrays(self.layer, weights, f"layers.{layer}.") | {"summed": self.summed, "ids": self.ids}
        if self.layer.split().reads_own:
            self.arrays["own"] = self.x
        self.options = {"model": json.dumps(self.model.config), "layer": layer, "seed": SEED, "training": True, "inputs": True}

    def run(self, operation, **arrays):
        return read_result(run_task(pack_task(operation, self.options, self.arrays | arrays)))[1]

    def whole(self):
        """Rows by autograd, of leaves `summed` and `own`."""
        summed, own = self.summed.clone().requires_grad_(), self.x.clone().requires_grad_()
        rows = Vertex(self.layer)(summed, own if "own" in self.arrays else None, self.ids, SEED)
        return rows, {"summed": summed, "own": own}

    def assert_gradients(self, found, loss, inputs):
        loss.backward()
        wanted = {GRADIENT + name: parameter.grad for name, parameter in self.layer.named_parameters()}
        wanted |= {name: leaf.grad for name, leaf in inputs.items() if name in self.arrays}
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            assert torch.allclose(found[name], gradient, rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("more", MORE, ids=["plain", "residual"])
@pytest.mark.parametrize("layer", [0, 1])
def test_rows_are_those_of_the_whole_layer(kind, more, layer):
    case = Case(kind, layer, **more)
    case.options["training"] = False
    found = case.run("forward")["rows"]
    assert torch.allclose(found, case.layer.eval()(case.x, case.data.graph), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("more", MORE, ids=["plain", "residual"])
def test_a_backward_task_is_the_gradient_of_a_forward_task(kind, more):
    case = Case(kind, **more)
    rows, inputs = case.whole()
    assert torch.equal(case.run("forward")["rows"], rows.detach())
    gradient = torch.randn(rows.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    case.assert_gradients(case.run("backward", gradient=gradient), (rows * gradient).sum(), inputs)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("classes", [None, torch.linspace(0.5, 2.0, CLASSES)], ids=["even", "weighted"])
def test_a_turn_is_the_loss_and_its_gradient(kind, classes):
    case = Case(kind, layer=1)
    seeds = torch.tensor([3, 5, 20])
    labels = case.data.y[seeds]
    arrays = {"seeds": seeds, "labels": labels} | ({} if classes is None else {"classes": classes})
    found = case.run("turn", **arrays)
    rows, inputs = case.whole()
    weight = torch.tensor(3.0) if classes is None else loss_weight(labels, classes)
    loss = node_loss(rows[seeds], labels, classes) * weight.double()
    numbers = [float(found.pop(name)) for name in ("loss", "weight", "right")]
    right = int((rows[seeds].argmax(1) == labels).sum())
    assert numbers == pytest.approx([float(loss.detach()), float(weight), right], rel=1e-12)
    case.assert_gradients(found, loss, inputs)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("classes", [None, torch.ones(CLASSES)], ids=["even", "weighted"])
def test_a_turn_without_seeds_has_no_loss_and_zero_gradients(kind, classes):
    none = torch.empty(0, dtype=torch.int64)
    found = Case(kind, layer=1).run("turn", seeds=none, labels=none, **({} if classes is None else {"classes": classes}))
    assert all(not array.any() for array in found.values())


@pytest.mark.parametrize("kind", MODELS)
def test_a_task_without_rows_has_zero_gradients(kind):
    case = Case(kind)
    for name in ("summed", "own", "ids"):
        if name in case.arrays:
            case.arrays[name] = case.arrays[name][:0]
    assert case.run("forward")["rows"].shape == (0, 8)
    found = case.run("backward", gradient=torch.empty(0, 8, dtype=torch.float64))
    assert all(not array.any() for array in found.values())


@pytest.mark.parametrize("kind", MODELS)
def test_rows_do_not_depend_on_the_rows_beside_them(kind):
    """Dropout goes by ids: a part of the rows is that part of all."""
    case = Case(kind)
    rows = case.run("forward")["rows"]
    some = {name: case.arrays[name][10:17] for name in ("summed", "own", "ids") if name in case.arrays}
    assert torch.allclose(case.run("forward", **some)["rows"], rows[10:17], rtol=1e-13, atol=1e-13)


def test_gradients_of_inputs_are_made_where_they_are_asked_for():
    case = Case("sage")
    case.options["inputs"] = False
    found = case.run("backward", gradient=torch.ones(40, 8, dtype=torch.float64))
    assert all(name.startswith(GRADIENT) for name in found)


@pytest.mark.parametrize("missing", ["summed", "own", "seeds", "labels", WEIGHT + "conv.lin_l.weight"])
def test_a_missing_array_is_named(missing):
    case = Case("sage", layer=1)
    arrays = case.arrays | {"seeds": torch.tensor([0]), "labels": torch.tensor([1])}
    del arrays[missing]
    with pytest.raises(TaskError) as error:
        read_result(run_task(pack_task("turn", case.options, arrays)))
    assert missing.removeprefix(WEIGHT) in error.value.message


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("own", lambda array: array[:1], r"as many rows .* own \[1, 8\]"),
        ("summed", lambda array: array[:1], r"as many rows .* summed \[1, 8\]"),
        (
            WEIGHT + "conv.lin_l.bias",
            lambda array: array[:1],
            r"lin_l\.bias has the shape \[1\], and the layer's \[4\]",
        ),
        (WEIGHT + "conv.lin_r.weight", lambda array: array[:1], r"has the shape \[1, 8\]"),
    ],
)
def test_arrays_that_torch_would_broadcast_are_refused(name, how, said):
    case = Case("sage", layer=1)
    with pytest.raises(TaskError, match=said):
        case.run("forward", **{name: how(case.arrays[name])})


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["forward", "turn", "backward"]),
    st.sampled_from(["summed", "own", "ids", "seeds", "labels", "gradient", "classes", WEIGHT + "conv.lin_l.weight", "none"]),
    st.sampled_from(["gone", "short", "wide", "flat", "text", "huge", "negative"]),
    st.sampled_from(["none", "layer", "model", "seed", "training", "inputs"]),
    st.sampled_from([None, -1, 99, "", "{}", "[", 2**70, [], True]),
)
def test_hostile_arrays_and_options_are_errors_and_never_a_crash(operation, name, how, option, value):
    """A task ends with arrays or with a `TaskError`, and the process lives."""
    case = Case("sage", layer=1)
    seeds = {"seeds": torch.tensor([0, 3]), "labels": torch.tensor([1, 2]), "classes": torch.ones(CLASSES)}
    arrays = case.arrays | seeds | {"gradient": torch.ones(40, CLASSES, dtype=torch.float64)}
    if name in arrays:
        array = arrays[name]
        odd = {"short": array[:1], "wide": torch.cat([array, array], -1), "flat": array.reshape(-1)}
        odd |= {"text": array.reshape(-1).view(torch.uint8), "huge": array * 10**9, "negative": -array - 1}
        if how == "gone":
            del arrays[name]
        else:
            arrays[name] = odd[how]
    options = case.options | ({option: value} if option != "none" else {})
    with contextlib.suppress(TaskError):
        read_result(run_task(pack_task(operation, options, arrays)))
