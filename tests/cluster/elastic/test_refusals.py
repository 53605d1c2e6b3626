"""What elastic training cannot do is an error before the first task, which says what to do."""

import sys

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.cluster.elastic import Controller
from headrace.train import NodeOptions, Watcher, node


@pytest.fixture
def data():
    return hr.generate.community(nodes=60, edges=200, classes=3, features=5, seed=1)


@pytest.fixture(autouse=True)
def _no_task(monkeypatch):
    def launch(controller, key, payload):
        raise AssertionError(f"task {key} was launched")

    monkeypatch.setattr(Controller, "launch", launch)


def options(**more):
    return NodeOptions(**({"hidden": 8, "epochs": 2, "full_batch": True, "flow": "pipe"} | more))


@pytest.mark.parametrize("flow", ["sync", "pipe", "async"])
def test_a_flow_needs_full_batch(flow):
    with pytest.raises(ValueError, match=f"flow {flow} trains on the whole graph: it needs full_batch"):
        NodeOptions(flow=flow)


@pytest.mark.parametrize("flow", ["none", "sync", "pipe"])
def test_only_async_has_a_lead(flow):
    with pytest.raises(ValueError, match=f"lead .* and flow is {flow}: leave it out"):
        options(flow=flow, lead=1)


@pytest.mark.parametrize(("name", "value"), [("intervals", 0), ("workers", -1), ("lead", -1)])
def test_numbers_have_bounds(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        options(**{name: value})


def test_an_unknown_flow_or_executor_is_named():
    for option, value in (("--flow", "later"), ("--executor", "gnomes")):
        done = CliRunner().invoke(app, ["train", "node", "towns", "--full-batch", option, value], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert value in done.output


def test_a_gpu_is_refused(data):
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)cpu|cuda"):
        node(data, options(device="cuda"), watcher=Watcher())


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({"model": "gin"}, r'layers\.0\.conv\.nn\.1.*use inner_norm="layer" or "none" \(--inner-norm\)'),
        ({"model": "sage", "norm": "batch"}, r'layers\.0\.norm is one; use norm="layer" or "none" \(--norm\)'),
    ],
)
def test_a_batch_norm_is_refused_with_its_remedy(data, more, remedy):
    with pytest.raises(ValueError, match=remedy):
        node(data, options(**more), watcher=Watcher())


class OwnModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def forward(self, batch):
        return self.linear(batch.x)


def test_a_model_of_another_class_is_refused(data):
    with pytest.raises(ValueError, match=r"flow pipe sends layers to workers by name, and knows those of headrace\.nn\.GNN alone"):
        node(data, options(), model=OwnModel(), watcher=Watcher())


def test_without_ray_the_error_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'headrace\[ray\]'"):
        node(data, options(executor="ray"), watcher=Watcher())


def test_without_boto3_the_error_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'headrace\[aws\]'"):
        node(data, options(executor="lambda"), watcher=Watcher())


@pytest.mark.usefixtures("_no_credentials")
def test_without_credentials_the_error_says_how_to_give_them(data):
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID"):
        node(data, options(executor="lambda"), watcher=Watcher())


@pytest.mark.parametrize("missing", ["x", "y"])
def test_features_and_labels_are_needed(data, missing):
    arrays = {"x": data.x, "y": data.y} | {missing: None}
    with pytest.raises(ValueError, match="features and labels, and this dataset lacks them"):
        node(hr.Dataset(data.graph, splits=data.splits, **arrays), options(), watcher=Watcher())


@pytest.mark.parametrize("command", [["--flow", "pipe"], ["--full-batch", "--flow", "sync", "--lead", "2"]])
def test_the_command_says_it_in_one_line(command):
    done = CliRunner().invoke(app, ["train", "node", "towns", *command], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "Traceback" not in done.output
