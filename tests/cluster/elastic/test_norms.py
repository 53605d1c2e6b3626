"""Which models elastic workers may compute."""

import pytest
from torch import nn

from headrace.cluster.elastic import refuse_batch_norms
from headrace.nn import GNN
from headrace.nn.gnn import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_models_without_a_batch_norm_pass(kind, norm):
    inner = {"inner_norm": norm} if kind == "gin" else {}
    refuse_batch_norms(GNN(8, 16, 4, layers=2, conv=kind, norm=norm, **inner))


@pytest.mark.parametrize(
    ("options", "layers", "remedy"),
    [
        ({"conv": "gin"}, "layers.0.conv.nn.1, layers.1.conv.nn.1 are such", 'use inner_norm="layer" or "none" (--inner-norm)'),
        ({"conv": "sage", "norm": "batch"}, "layers.0.norm is one", 'use norm="layer" or "none" (--norm)'),
        (
            {"conv": "gin", "norm": "batch"},
            "layers.0.conv.nn.1, layers.0.norm, layers.1.conv.nn.1 are such",
            'use inner_norm="layer" or "none" (--inner-norm) and norm="layer" or "none" (--norm)',
        ),
    ],
)
def test_a_batch_norm_is_named_with_its_remedy(options, layers, remedy):
    with pytest.raises(ValueError) as refusal:
        refuse_batch_norms(GNN(8, 16, 4, layers=2, **options))
    assert str(refusal.value).endswith(f"{layers}; {remedy}")


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm1d()], ids=lambda norm: norm._get_name())
def test_every_kind_of_batch_norm_is_known(norm):
    with pytest.raises(ValueError, match=r"inner\.0 is one"):
        refuse_batch_norms(nn.ModuleDict({"inner": nn.Sequential(norm)}))
