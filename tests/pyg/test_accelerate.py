import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from layer_cases import NODES, WIDTH, inputs
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import Explainer, GNNExplainer

import headrace.pyg
from headrace.graph.topology.edge_rows import carried
from headrace.loader import NeighborLoader
from headrace.loader.hetero import HeteroNeighborLoader
from headrace.pyg import accelerate


def plain_graph() -> tuple[Tensor, Tensor]:
    given = inputs("plain")
    return given["x"], given["edge_index"]


def test_layers_change_in_place_and_the_report_says_which_and_why() -> None:
    class Own(pyg.GATConv):
        pass

    model = nn.ModuleDict(
        {
            "sage": pyg.SAGEConv(WIDTH, 4),
            "lstm": pyg.SAGEConv(WIDTH, 4, aggr="lstm"),
            "own": Own(WIDTH, 4),
            "cheb": pyg.ChebConv(WIDTH, 4, K=2),
            "done": headrace.pyg.GCNConv(WIDTH, 4),
            "linear": nn.Linear(2, 2),
        }
    )
    report = accelerate(model)
    assert type(model["sage"]) is headrace.pyg.SAGEConv
    assert [layer.name for layer in report.changed] == ["sage"]
    reasons = {layer.name: layer.reason for layer in report.kept}
    assert reasons["lstm"] == "aggr='lstm' has no kernel"
    assert "subclass of GATConv" in reasons["own"]
    assert reasons["cheb"] == "it has no accelerated form"
    assert "already" in reasons["done"]
    assert "Accelerated(1 of 5 message-passing layers)" in repr(report)
    assert "kept: aggr='lstm' has no kernel" in repr(report)
    report.restore()
    assert type(model["sage"]) is pyg.SAGEConv
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        accelerate("model")  # type: ignore[arg-type]
    assert "the model has none" in repr(accelerate(nn.Linear(2, 2)))


def test_optimizers_and_state_dicts_stay_valid_both_ways() -> None:
    x, edge_index = plain_graph()
    model = pyg.GraphSAGE(WIDTH, 8, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    accelerate(model)
    assert model.state_dict().keys() == before.keys()
    model(x, edge_index).sum().backward()
    optimizer.step()
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fresh = pyg.GraphSAGE(WIDTH, 8, 2, 3)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x, edge_index), model(x, edge_index), rtol=1e-5, atol=1e-5)
    model.load_state_dict(before)
    fresh.load_state_dict(before)
    torch.testing.assert_close(fresh(x, edge_index), model(x, edge_index), rtol=1e-5, atol=1e-5)


def test_copies_and_pickles_stay_accelerated() -> None:
    x, edge_index = plain_graph()
    model = nn.ModuleList([headrace.pyg.GATConv(WIDTH, 4, heads=2), headrace.pyg.SAGEConv(-1, 4)])
    model[1](x, edge_index)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        for conv, other in zip(model, twin, strict=True):
            assert type(other) is type(conv)
            assert torch.equal(other(x, edge_index), conv(x, edge_index))


def test_constructors_reprs_and_documentation_are_pygs() -> None:
    conv = headrace.pyg.SAGEConv((8, -1), 16, aggr="max", normalize=True)
    assert repr(conv) == repr(pyg.SAGEConv((8, -1), 16, aggr="max", normalize=True))
    assert isinstance(conv, pyg.SAGEConv)
    assert repr(headrace.pyg.RGCNConv(4, 4, 3)) == "RGCNConv(4, 4, num_relations=3)"


def calls_of(conv: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes when PyG's own forward runs."""
    calls: list[str] = []
    theirs = conv.pyg.forward

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append("pyg")
        return theirs(self, *arguments, **options)

    monkeypatch.setattr(conv.pyg, "forward", forward)
    return calls


def test_hooks_of_single_steps_run_and_pygs_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x, edge_index = plain_graph()
    conv = headrace.pyg.SAGEConv(WIDTH, 4)
    calls = calls_of(conv, monkeypatch)
    plain = conv(x, edge_index)
    assert not calls
    seen: list[int] = []
    handle = conv.register_message_forward_hook(lambda module, given, out: seen.append(len(out)) or 2 * out)
    doubled = conv(x, edge_index)
    assert seen == [edge_index.shape[1]]
    assert calls == ["pyg"]
    assert not torch.allclose(doubled, plain)
    handle.remove()
    assert torch.equal(conv(x, edge_index), plain)
    conv.register_forward_hook(lambda module, given, out: 3 * out)  # of the layer as a whole, of maps in it
    torch.testing.assert_close(conv(x, edge_index), 3 * plain)
    conv.lin_l.register_forward_hook(lambda module, given, out: seen.append(-1))
    conv(x, edge_index)
    assert seen[-1] == -1
    assert calls == ["pyg"]


def test_small_graphs_take_pygs_path(monkeypatch: pytest.MonkeyPatch) -> None:
    x, edge_index = plain_graph()
    conv = headrace.pyg.SAGEConv(WIDTH, 4)
    calls = calls_of(conv, monkeypatch)
    conv(x, edge_index)
    assert calls == ["pyg"]
    conv(x, edge_index.repeat(1, conv.least // edge_index.numel()))
    assert calls == ["pyg"]


def test_overridden_messages_are_used() -> None:
    class Twice(headrace.pyg.SAGEConv):
        def message(self, x_j: Tensor) -> Tensor:
            return 2 * x_j

    x, edge_index = plain_graph()
    torch.manual_seed(0)
    twice = Twice(WIDTH, 4, root_weight=False, bias=False)
    torch.manual_seed(0)
    plain = headrace.pyg.SAGEConv(WIDTH, 4, root_weight=False, bias=False)
    torch.testing.assert_close(twice(x, edge_index), 2 * plain(x, edge_index))
    plain.message = lambda x_j: 3 * x_j  # of one layer alone
    torch.testing.assert_close(2 * plain(x, edge_index), 3 * twice(x, edge_index))


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_a_plain_edge_index_takes_pygs_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_geometric import EdgeIndex

    x, edge_index = plain_graph()
    conv = headrace.pyg.SAGEConv(WIDTH, 4, aggr="sum")
    expected = conv(x, edge_index)
    calls = calls_of(conv, monkeypatch)
    sparse = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.shape[1]), (NODES, NODES)).coalesce().to_sparse_csr()
    for other in (sparse, EdgeIndex(edge_index, sparse_size=(NODES, NODES))):
        out = conv(x, other)
        assert out.shape == expected.shape
    torch.testing.assert_close(conv(x.unsqueeze(0).repeat(2, 1, 1), edge_index)[1], expected, rtol=1e-5, atol=1e-5)
    assert len(calls) == 3
    with pytest.raises(IndexError, match="edge_index"):  # PyG's own words
        conv(x, edge_index + NODES)
    with pytest.raises(ValueError, match="integer"):
        conv(x, edge_index.float())
    weights = headrace.pyg.GATConv(WIDTH, 4)(x, edge_index, return_attention_weights=True)[1][1]
    assert len(weights) >= edge_index.shape[1] - 10


def test_tracing_scripting_and_functional_transforms() -> None:
    x, edge_index = plain_graph()
    for conv in (headrace.pyg.SAGEConv(WIDTH, 4), headrace.pyg.GCNConv(WIDTH, 4)):
        expected = conv(x, edge_index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells everybody to move on from scripts
            scripted = torch.jit.script(conv)
        torch.testing.assert_close(scripted(x, edge_index), expected, rtol=1e-5, atol=1e-5)
        assert type(conv) in (headrace.pyg.SAGEConv, headrace.pyg.GCNConv)
        exported = torch.export.export(conv, (x, edge_index), strict=False).module()
        torch.testing.assert_close(exported(x, edge_index), expected, rtol=1e-5, atol=1e-5)
    conv = headrace.pyg.SAGEConv(WIDTH, 4)
    gradient = torch.func.grad(lambda value: conv(value, edge_index).sum())(x)
    lead = x.clone().requires_grad_()
    conv(lead, edge_index).sum().backward()
    torch.testing.assert_close(gradient, lead.grad, rtol=1e-5, atol=1e-5)


def test_compiling_is_no_error() -> None:
    x, edge_index = plain_graph()
    conv = headrace.pyg.SAGEConv(WIDTH, 4)
    compiled = torch.compile(conv, backend="eager")
    torch.testing.assert_close(compiled(x, edge_index), conv(x, edge_index), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_explainers_see_the_edges() -> None:
    x, edge_index = plain_graph()
    torch.manual_seed(0)
    model = pyg.GCN(WIDTH, 8, 2, 3).eval()
    accelerate(model)
    explainer = Explainer(
        model,
        GNNExplainer(epochs=3),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explanation = explainer(x, edge_index, index=2)
    assert explanation.edge_mask.shape == (edge_index.shape[1],)
    assert explanation.edge_mask.any()
    before = model(x, edge_index)
    assert type(model.convs[0]) is headrace.pyg.GCNConv
    torch.testing.assert_close(before, model(x, edge_index))


def typed_data() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.randn(30, WIDTH), torch.randn(50, WIDTH)
    data["author", "writes", "paper"].edge_index = torch.stack([torch.randint(0, 30, (200,)), torch.randint(0, 50, (200,))])
    data["paper", "cites", "paper"].edge_index = torch.randint(0, 50, (2, 150))
    data["paper", "written_by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0).contiguous()
    return data


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.SAGEConv((-1, -1), 8)
        self.second = pyg.GATConv((-1, -1), 4, add_self_loops=False)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("first", ["accelerate", "to_hetero"])
@pytest.mark.filterwarnings("ignore")
def test_to_hetero_before_and_after(first: str) -> None:
    data = typed_data()
    model = Typed()
    if first == "accelerate":
        accelerate(model)
        model = pyg.to_hetero(model, data.metadata())
    else:
        model = pyg.to_hetero(model, data.metadata())
        assert len(accelerate(model).changed) == 6
    kinds = {type(module) for module in model.modules() if isinstance(module, pyg.MessagePassing)}
    assert kinds == {headrace.pyg.SAGEConv, headrace.pyg.GATConv}
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    found = model(data.x_dict, data.edge_index_dict)
    for module in model.modules():
        if isinstance(module, pyg.MessagePassing):
            module.__class__ = module.pyg
    for kind, expected in model(data.x_dict, data.edge_index_dict).items():
        torch.testing.assert_close(found[kind], expected, rtol=1e-5, atol=1e-5)


def test_typed_batches_through_hetero_conv_carry_their_rows() -> None:
    data = typed_data()
    theirs = pyg.HeteroConv({kind: pyg.SAGEConv((WIDTH, WIDTH), 4) for kind in data.edge_types}, aggr="sum")
    ours = copy.deepcopy(theirs)
    assert len(accelerate(ours).changed) == 3
    loader = HeteroNeighborLoader(data, [3, 2], input_nodes=("paper", torch.arange(50)), batch_size=8)
    for batch in loader:
        assert all(carried(edges) is not None for edges in batch.edge_index_dict.values())
        expected, found = (model(batch.x_dict, batch.edge_index_dict) for model in (theirs, ours))
        for kind in expected:
            torch.testing.assert_close(found[kind], expected[kind], rtol=1e-5, atol=1e-5)


def test_batches_of_our_loader_are_not_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, edge_index = plain_graph()
    model = pyg.GraphSAGE(WIDTH, 8, 2, 3)
    twin = copy.deepcopy(model)
    accelerate(model)
    monkeypatch.setattr("headrace.graph.topology.edge_rows._built", lambda *_: pytest.fail("the edges of a batch were sorted"))
    for batch in NeighborLoader(Data(x=x, edge_index=edge_index), [4, 4], batch_size=7):
        torch.testing.assert_close(model(batch.x, batch.edge_index), twin(batch.x, batch.edge_index), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [pyg.GraphSAGE, pyg.GCN, pyg.GAT])
def test_training_follows_an_evaluation_in_inference_mode(make: Any) -> None:
    x, edge_index = plain_graph()
    weight = {"edge_weight": torch.rand(edge_index.shape[1])} if make is pyg.GCN else {}
    model = make(WIDTH, 8, 2, 3)
    accelerate(model)
    with torch.inference_mode():
        expected = model(x, edge_index, **weight)
    found = model(x.requires_grad_(), edge_index, **weight)
    found.sum().backward()
    assert torch.equal(found.detach(), expected)


def test_an_edge_index_that_changes_in_place_is_noticed() -> None:
    x, edge_index = plain_graph()
    model = pyg.GCN(WIDTH, 8, 2, 3)
    twin = copy.deepcopy(model)
    accelerate(model)
    for _ in range(3):
        torch.testing.assert_close(model(x, edge_index), twin(x, edge_index), rtol=1e-5, atol=1e-5)
        edge_index[0] = (edge_index[0] + 1) % NODES
    weight = torch.rand(edge_index.shape[1])
    for _ in range(3):
        found, expected = model(x, edge_index, weight), twin(x, edge_index, weight)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        weight.mul_(torch.rand(len(weight)) + 0.5)


def test_package_imports_without_pyg(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    code = "import sys; sys.modules['torch_geometric'] = None; import headrace; print('fine')\nimport headrace.pyg"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "fine" in done.stdout
    assert "headrace.pyg needs PyG: pip install torch-geometric" in done.stderr
