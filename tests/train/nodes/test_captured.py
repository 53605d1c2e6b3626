import pytest
import torch
from torch import nn

import headrace as hr
from headrace.loader.padded import Shape
from headrace.train.captured import CapturedStep, captures
from headrace.train.nodes.recipe import NodeRecipe

USUAL = {"capture": "auto", "on_gpu": True, "sampled": True, "steps": 2000}


@pytest.mark.parametrize(
    ("model", "given", "captured", "reason"),
    [
        (hr.nn.GNN(4, 8, 2), {}, True, "2000 steps"),
        (hr.nn.GNN(4, 8, 2), {"steps": 16}, True, "16 steps"),
        (hr.nn.GNN(4, 8, 2), {"steps": 15}, False, "fewer than 16 do not earn"),
        (hr.nn.GNN(4, 8, 2), {"on_gpu": False}, False, "on a GPU"),
        (hr.nn.GNN(4, 8, 2), {"sampled": False}, False, "sampled batches"),
        (hr.nn.GNN(4, 8, 2, norm="batch"), {}, False, "normalizes over them"),
        (hr.nn.GNN(4, 8, 2, conv="gin"), {}, False, "normalizes over them"),
        (nn.Linear(4, 2), {}, False, "capture always tries it"),
        (nn.Linear(4, 2), {"capture": "always"}, True, "capture always"),
        (hr.nn.GNN(4, 8, 2), {"capture": "never"}, False, "capture never"),
        (hr.nn.GNN(4, 8, 2), {"pulls": True}, False, "sums of other ranks"),
    ],
)
def test_steps_are_recorded_where_it_pays(model: nn.Module, given: dict[str, object], captured: bool, reason: str) -> None:
    found, why = captures(model, **{**USUAL, **given})  # type: ignore[arg-type]
    assert found is captured
    assert reason in why


def test_a_resumed_run_goes_on_as_it_began() -> None:
    data = hr.generate.community(nodes=300, edges=2000, classes=3, features=4)
    options = hr.train.NodeOptions(hidden=8, fanout=(3,), batch_size=50).suited(len(data.splits["train"]))
    recipe = NodeRecipe(data, hr.nn.GNN(4, 8, 3, layers=1), options)
    assert recipe.captured is None
    assert recipe.state_dict() == {}
    begun = CapturedStep(recipe.model, recipe._loss_of, Shape)
    begun.seen, begun.recordings = 3, 1
    recipe.load_state_dict({"captured": begun.state_dict()})
    assert recipe.captured is not None
    assert recipe.state_dict() == {"captured": begun.state_dict()}
    recipe.load_state_dict({})
    assert recipe.captured is None
    assert torch.equal(recipe.train_nodes, data.splits["train"])
