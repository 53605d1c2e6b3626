"""Link prediction on small real knowledge graphs: about what the papers report, in seconds."""

import pytest

import headrace as hr
from headrace.train import LinkOptions, link


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"decoder": "complex", "negatives": 50, "epochs": 12}, 0.78),
        (
            {"decoder": "complex", "negatives": 0, "reciprocal": True, "regularizer": "n3", "regularization": 0.005, "epochs": 20},
            0.85,
        ),
        ({"decoder": "rotate", "norm": "l2", "negatives": 0, "reciprocal": True, "epochs": 20}, 0.75),
    ],
    ids=["shared negatives", "one against all with N3", "rotate"],
)
def test_filtered_rank(data_root, changes, least):
    result = link(hr.load("umls", data_root), LinkOptions(dim=64, batch_size=200, optimizer="adagrad", threads=1, **changes))
    assert result.test["ranking"] == "full"
    assert result.test["measure"] == "filtered"
    assert result.test["mrr"] > least
