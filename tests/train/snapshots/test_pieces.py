"""Pieces of work as a GPU runs them, here on a CPU: in lanes, and by what a recording would read and replay."""

from contextlib import ExitStack

import pytest
import torch

import headrace as hr
import snapshot_training
from headrace.ranks import Alone
from headrace.snapshots.streams import OneStream
from headrace.train import SnapshotOptions, Watcher
from headrace.train.fit import Setup
from headrace.train.snapshots.joint import differentiated
from headrace.train.snapshots.pieces import Pieces
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.windows import Windows

SHAPE = {"window": 3, "hidden": 8, "groups": 6, "stack": 6, "test": 0.2, "val": 0.2}


def recipe_of(data, **more):
    options = SnapshotOptions(**{**SHAPE, **more})
    torch.manual_seed(0)
    with ExitStack() as opened:
        return SnapshotRecipe(Windows.of(data, options), Setup(options, None, None, Alone(), 1, Watcher(), opened)), options


def one_graph(classes=False):
    data = snapshot_training.sequence()
    torch.manual_seed(2)
    edges, steps, nodes = data.graph(3).edge_index(), len(data), data.num_nodes
    y = torch.randint(0, 3, (steps, nodes)) if classes else torch.randn(steps, nodes)
    return hr.Snapshots([tuple(edges)] * steps, nodes, x=torch.randn(steps, nodes, 3), y=y)


class Again:
    """Stands for a recording: the same loss, of what is in the same memory."""

    def __init__(self, loss, inputs, parameters):
        self.loss, self.inputs, self.parameters = loss, [values.clone() for values in inputs], parameters

    def replay(self, inputs):
        for place, values in zip(self.inputs, inputs, strict=True):
            place.copy_(values)
        loss = self.loss(self.inputs)
        return loss.detach(), differentiated(loss, self.parameters)


class AsRecorded(Pieces):
    recordings = 0

    def _record(self, loss, inputs):
        self.recordings += 1
        return Again(loss, inputs, self.parameters)


def assert_pieces(pieces, recipe):
    for groups in [*recipe.steps_of(0), *recipe.steps_of(1)]:
        loss = recipe.loss_of(groups)
        expected = differentiated(loss, list(recipe.model.parameters()))
        found, gradients = pieces(groups)
        torch.testing.assert_close(found, loss.detach(), rtol=1e-5, atol=1e-6)
        for a, b in zip(gradients, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["tgcn", "a3tgcn", "lrgcn", "gconvgru", "gclstm", "wdgcn", "evolvegcno"])
@pytest.mark.parametrize("more", [{}, {"overlap": True}, {"overlap": True, "keep": 0.0}])
def test_a_recording_has_the_loss_and_gradients_of_every_piece(model, more):
    recipe, options = recipe_of(one_graph(), model=model, **more)
    pieces = AsRecorded(recipe.operators, recipe.head, recipe.model, options, OneStream())
    assert_pieces(pieces, recipe)
    sizes = {len(groups) for groups in recipe.steps_of(0)}
    assert pieces.captures
    assert pieces.recordings == len(sizes) == 2  # the last step of an epoch is a smaller one
    assert "replayed as a CUDA graph" in pieces.reason


def test_classes_are_recorded_too():
    recipe, options = recipe_of(one_graph(classes=True), model="gclstm", overlap=True)
    assert_pieces(AsRecorded(recipe.operators, recipe.head, recipe.model, options, OneStream()), recipe)


@pytest.mark.parametrize("model", ["tgcn", "gclstm", "mpnnlstm"])
def test_groups_of_many_shapes_run_in_lanes_and_say_why_they_are_not_recorded(model):
    recipe, options = recipe_of(snapshot_training.sequence(), model=model, overlap=True)
    pieces = AsRecorded(recipe.operators, recipe.head, recipe.model, options, OneStream())
    assert_pieces(pieces, recipe)
    assert not pieces.captures
    assert "operator by operator: groups are not stacked over one graph" in pieces.reason


def test_what_cannot_be_recorded_is_refused_with_the_reason():
    recipe, options = recipe_of(snapshot_training.sequence())
    object.__setattr__(options, "capture", "always")
    with pytest.raises(ValueError, match="groups are not stacked over one graph: leave capture out"):
        Pieces(recipe.operators, recipe.head, recipe.model, options)
    bare = hr.Snapshots([tuple(one_graph().graph(0).edge_index())] * 24, one_graph().num_nodes)
    recipe, options = recipe_of(bare)
    assert "links differ in number" in Pieces(recipe.operators, recipe.head, recipe.model, options).reason


@pytest.mark.parametrize("wrong", [{"capture": "always"}, {"programs": 100}])
def test_what_a_gpu_does_is_refused_on_a_cpu(wrong):
    with pytest.raises(ValueError, match="programs and capture say what a GPU does"):
        SnapshotOptions(**wrong)
