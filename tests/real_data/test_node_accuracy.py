"""Published accuracies, reached: the mean of ten seeds on the public splits."""

import pytest

import headrace as hr

GCN = {"model": "gcn", "hidden": 16, "full_batch": True, "features": "rows", "epochs": 200, "lr": 0.01, "weight_decay": 5e-4}
GAT = {**GCN, "model": "gat", "hidden": 64, "dropout": 0.6, "epochs": 300, "lr": 0.005}


def mean_accuracy(data, **options):
    return hr.train.node(data, options=hr.train.NodeOptions(**options)).summary()["test_accuracy"]["mean"]


def test_gcn_learns_cora(data_root):
    assert mean_accuracy(hr.load("cora", data_root), **{**GCN, "epochs": 100}) > 0.79


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "published", "within"),
    [("cora", GCN, 0.815, 0.008), ("pubmed", GCN, 0.790, 0.008), ("cora", GAT, 0.830, 0.010)],
    ids=["GCN on Cora", "GCN on PubMed", "GAT on Cora"],
)
def test_published_accuracy_is_reached(data_root, name, options, published, within):
    """Kipf and Welling 2017 (GCN), Velickovic et al. 2018 (GAT)."""
    assert mean_accuracy(hr.load(name, data_root), repeats=10, **options) == pytest.approx(published, abs=within)


@pytest.mark.slow
def test_sampled_sage_is_within_a_point_of_full_batch(data_root):
    data = hr.load("coauthor_physics", data_root)
    options = {"model": "sage", "hidden": 64, "layers": 2, "lr": 0.01, "weight_decay": 5e-4, "features": "rows"}
    options |= {"validate_every": 5, "repeats": 3}
    whole = mean_accuracy(data, full_batch=True, epochs=30, **options)
    sampled = mean_accuracy(data, fanout=(15, 10), batch_size=50, epochs=15, **options)
    assert sampled == pytest.approx(whole, abs=0.01)
