"""Measures of nodes beside their definitions."""

import pytest
import torch
import torch.nn.functional as F

from headrace.nn.node_losses import count_right, node_loss
from headrace.train.measure import auc
from headrace.train.nodes.score import measures_of, per_class, score


def test_scores_are_accuracy_and_cross_entropy():
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    labels = torch.tensor([0, 1, 1])
    found = score(rows, labels)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(rows, labels)))


def test_the_score_of_several_labels_is_micro_f1():
    rows = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]])
    labels = torch.tensor([[1, 0, 0], [0, 1, 1]])
    assert score(rows, labels)["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert count_right(-torch.ones(2, 3), torch.zeros(2, 3)) == 2  # nothing to find, nothing found
    assert float(node_loss(rows, labels)) == pytest.approx(float(F.binary_cross_entropy_with_logits(rows, labels.float())))


def random_scores(seed, nodes=40, classes=5, several=False):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(-3, 4, (nodes, classes), generator=draw).float()  # with ties
    labels = (
        torch.randint(0, 2, (nodes, classes), generator=draw) if several else torch.randint(0, classes, (nodes,), generator=draw)
    )
    return rows, labels


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_f1_of_classes_is_that_of_precision_and_recall(seed, several):
    rows, labels = random_scores(seed, several=several)
    predicted = rows > 0 if several else F.one_hot(rows.argmax(dim=1), 5).bool()
    true = labels.bool() if several else F.one_hot(labels, 5).bool()
    table = per_class(rows, labels)
    for c, row in enumerate(table):
        precision = float(true[predicted[:, c], c].double().mean().nan_to_num())
        recall = float(predicted[true[:, c], c].double().mean().nan_to_num())
        assert (row["precision"], row["recall"]) == pytest.approx((precision, recall))
        assert row["f1"] == pytest.approx(2 * precision * recall / max(precision + recall, 1e-9))
        assert row["nodes"] == int(true[:, c].sum())
    assert score(rows, labels)["macro_f1"] == pytest.approx(sum(row["f1"] for row in table) / 5)


def test_a_class_that_nobody_has_or_predicts_is_not_in_the_mean():
    rows = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    assert score(rows, torch.tensor([0, 1]))["macro_f1"] == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_the_area_under_the_curve_counts_pairs(seed):
    rows, labels = random_scores(seed, classes=2)
    margin = rows[:, 1] - rows[:, 0]
    pairs = margin[labels == 1][:, None] - margin[labels == 0][None]
    expected = float((pairs > 0).double().mean() + 0.5 * (pairs == 0).double().mean())
    assert auc(margin, labels == 1) == pytest.approx(expected)
    assert score(rows, labels)["auc"] == pytest.approx(expected)
    several, marks = random_scores(seed, classes=3, several=True)
    marks[:, 2] = 1  # no pair: it is left out of the mean
    areas = [auc(several[:, c], marks[:, c] > 0) for c in range(3)]
    assert areas[2] is None
    assert score(several, marks)["auc"] == pytest.approx((areas[0] + areas[1]) / 2)


def test_measures_are_those_that_the_labels_have():
    assert [m.name for m in measures_of(torch.zeros(3), 7)] == ["accuracy", "loss", "macro_f1"]
    assert [m.name for m in measures_of(torch.zeros(3), 2)] == ["accuracy", "loss", "macro_f1", "auc"]
    assert [m.name for m in measures_of(torch.zeros(3, 2), 2)] == ["micro_f1", "loss", "macro_f1", "auc"]
    assert "auc" not in score(torch.randn(3, 2), torch.ones(3, dtype=torch.int64))  # one class alone
    assert score(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))["accuracy"] == 0
    assert per_class(torch.zeros(1, 1001), torch.zeros(1, dtype=torch.int64)) is None
