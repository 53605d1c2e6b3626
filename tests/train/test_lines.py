"""Who sees the lines of a run that was started from Python."""

import sys
import types

import pytest

import headrace as hr
from headrace.train import Watcher
from headrace.train.watching.lines import Lines, usual_watcher
from training_cases import small


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=200, edges=2000, classes=3, features=4)


def test_a_terminal_or_a_notebook_is_shown_lines_and_a_pipe_none(monkeypatch):
    assert type(usual_watcher()) is Watcher
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(usual_watcher(), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert isinstance(usual_watcher(), Lines)


def test_a_watcher_that_is_passed_is_the_only_one(data, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["headrace.train.fit"], "usual_watcher", Lines)
    hr.train.node(data, small(epochs=1))
    hr.train.link(data, hr.train.LinkOptions(dim=4, epochs=1))
    shown = capsys.readouterr().err
    assert "sage with" in shown
    assert "dot with" in shown
    hr.train.node(data, small(epochs=1), watcher=Watcher())
    hr.train.link(data, hr.train.LinkOptions(dim=4, epochs=1), watcher=Watcher())
    assert capsys.readouterr().err == ""


def test_node_and_link_take_the_same_arguments_and_name_a_model_in_the_wrong_place(data):
    with pytest.raises(TypeError, match=r"options must be NodeOptions, not GNN: a model is passed as model="):
        hr.train.node(data, hr.nn.GNN(4, 8, 3))
    with pytest.raises(TypeError, match=r"options must be LinkOptions, not Dot: a decoder is passed as model="):
        hr.train.link(data, hr.nn.Dot(4))


def test_some_options_by_name_are_taken_by_both(data):
    some = hr.train.node(data, {"epochs": 1, "hidden": 8, "fanout": (3,), "layers": 1, "threads": 1, "seed": 5})
    all_of_them = hr.train.NodeOptions(epochs=1, hidden=8, fanout=(3,), layers=1, threads=1, seed=5)
    assert some.scores["test_loss"] == hr.train.node(data, all_of_them).scores["test_loss"]
    assert hr.train.link(data, {"epochs": 1, "dim": 4}).decoder is not None
    with pytest.raises(TypeError, match="hiden"):
        hr.train.node(data, {"hiden": 8})


def test_a_decoder_of_ones_own_is_trained_as_it_is(data):
    options = hr.train.LinkOptions(dim=4, epochs=1)
    decoder = hr.nn.DistMult(4)
    result = hr.train.link(data, options, model=decoder)
    assert result.decoder is decoder
    made = []

    def make():
        made.append(hr.nn.DistMult(4))
        return made[-1]

    again = hr.train.link(data, hr.train.LinkOptions(dim=4, epochs=1, repeats=2), model=make)
    assert again.decoder is made[-1]
    with pytest.raises(ValueError, match="repeats need a decoder each"):
        hr.train.link(data, hr.train.LinkOptions(dim=4, repeats=2), model=decoder)
    with pytest.raises(ValueError, match=r"the decoder has dim 4 and parameters .*: the options ask for dim 6"):
        hr.train.link(data, hr.train.LinkOptions(dim=6), model=decoder)
    with pytest.raises(ValueError, match="the options name decoder dot, and the model is distmult"):
        hr.train.link(data, hr.train.LinkOptions(dim=4, decoder="dot"), model=decoder)
    with pytest.raises(TypeError, match="must be a decoder"):
        hr.train.link(data, options, model=lambda: 3)
