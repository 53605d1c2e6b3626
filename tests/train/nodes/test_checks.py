import dataclasses

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.train import node
from headrace.train.nodes import checks
from headrace.train.nodes.checks import check_node_data
from training_cases import small


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=300, edges=3000, classes=3, features=8, seed=2, splits=(0.3, 0.2, 0.5))


def changed(data: hr.Dataset, **changes) -> hr.Dataset:
    splits = {**data.splits, **changes.pop("splits", {})}
    return dataclasses.replace(data, splits={name: ids for name, ids in splits.items() if ids is not None}, **changes)


def put(rows: torch.Tensor, at, value) -> torch.Tensor:
    rows = rows.clone()
    rows[at] = value
    return rows


def test_good_data_passes(data):
    check_node_data(data)
    check_node_data(changed(data, splits={"val": None, "test": None}))
    check_node_data(changed(data, y=torch.stack([data.y == 0, data.y == 1], dim=1)))
    check_node_data(changed(data, y=data.y.to(torch.uint8)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "this dataset has no labels: node classification needs y"),
        ({"x": torch.zeros(300)}, r"features must be a row per node; x has shape \[300\]"),
        (
            {"x": torch.zeros(300, 8, dtype=torch.int64)},
            "features must be floating-point numbers, not torch.int64: convert x",
        ),
        ({"y": torch.zeros(300)}, "labels must be class numbers, not torch.float32"),
        ({"y": torch.full((300, 2), 3)}, "labels of several columns must be 0 or 1"),
        ({"y": torch.full((300, 2), float("nan"))}, "labels of several columns must be 0 or 1"),
        (
            {"splits": {"train": None}},
            r"the split 'train' is missing: .* \(splits: val \(60\), test \(150\)\)",
        ),
        ({"splits": {"train": torch.tensor([], dtype=torch.int64)}}, "the split 'train' is empty"),
        ({"splits": {"train": torch.zeros(300, dtype=torch.bool)}}, "the split 'train' is empty"),
        ({"splits": {"val": torch.tensor([], dtype=torch.int64)}}, "the split 'val' is empty: give it nodes, or leave it out"),
        ({"splits": {"test": torch.tensor([3, 300])}}, "the split 'test' holds ids from 3 to 300, but there are nodes 0 to 299"),
        ({"splits": {"train": torch.tensor([3, -1])}}, "the split 'train' holds ids from -1 to 3"),
    ],
)
def test_data_that_cannot_be_learnt_from_is_refused_and_says_why(data, changes, message, tmp_path):
    bad = changed(data, **changes)
    with pytest.raises(ValueError, match=message):
        check_node_data(bad)
    with pytest.raises(ValueError, match=message):
        node(bad, options=small(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("label", [-1, 3, 99])
def test_a_label_out_of_range_is_named_with_its_node_and_split(data, split, label):
    node_id = int(data.splits[split][4])
    bad = changed(data, y=put(data.y, node_id, label), info={"num_classes": 3})
    with pytest.raises(
        ValueError, match=rf"labels out of range: 1 nodes of split '{split}' .* not from 0 to 2 \(node {node_id} has {label}\)"
    ):
        check_node_data(bad)


def test_nodes_of_no_split_need_no_label(data):
    outside = torch.ones(300, dtype=torch.bool)
    outside[data.splits["train"]] = False
    unlabeled = put(data.y, outside, -1)
    only = {"train": data.splits["train"], "val": None, "test": None}
    check_node_data(changed(data, y=unlabeled, splits=only))
    check_node_data(changed(data, y=unlabeled, splits={**only, "unlabeled": outside.nonzero().flatten()}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [(0, 0), (299, 7), (123, 4)])
@pytest.mark.parametrize("chunk", [1 << 18, 50])
def test_a_feature_that_is_not_finite_is_named_with_its_node_and_column(data, value, at, chunk, monkeypatch):
    monkeypatch.setattr(checks, "_CHUNK", chunk)
    with pytest.raises(ValueError, match=rf"features must be finite: x\[{at[0]}, {at[1]}\] is {value}"):
        check_node_data(changed(data, x=put(data.x, at, value)))


def test_edge_weights_that_only_validation_would_see_are_refused(data):
    weighted = changed(data, graph=hr.Graph(data.graph.indptr, data.graph.indices, weight=torch.rand(3000)))
    with pytest.raises(ValueError, match="sampled batches carry no edge weights, which gcn would use"):
        node(weighted, options=small(model="gcn"))
    node(weighted, options=small(model="gcn", epochs=1, full_batch=True))
    node(weighted, options=small(model="sage", epochs=1))


def test_huge_features_are_finite_all_the_same(data):
    check_node_data(changed(data, x=torch.full((300, 8), 3e38)))


def test_of_very_many_features_some_rows_are_looked_at(data, monkeypatch):
    monkeypatch.setattr(checks, "_MOST", data.x.nbytes // 3)
    with pytest.raises(ValueError, match=r"x\[6, 2\] is nan"):
        check_node_data(changed(data, x=put(data.x, (6, 2), float("nan"))))
    check_node_data(changed(data, x=put(data.x, (7, 2), float("nan"))))  # the price


def test_features_may_be_read_only(data, tmp_path):
    data.save(tmp_path / "saved")
    check_node_data(hr.open(tmp_path / "saved"))
    node(hr.open(tmp_path / "saved"), options=small(epochs=1))


def test_a_model_of_ones_own_needs_features(data):
    bare = changed(data, x=None)
    with pytest.raises(ValueError, match="this dataset has no features: node classification needs x"):
        check_node_data(bare)
    with pytest.raises(ValueError, match="this dataset has no features: node classification needs x"):
        node(bare, model=nn.Identity(), options=small())
    check_node_data(bare, own_rows=True)
