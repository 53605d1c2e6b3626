"""A run that has ended goes on with more epochs, and ends as if it had had them from the beginning."""

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.train import LinkOptions, Measure, Recipe, Run, RunOptions, Step, Watcher, fit, link, node
from training_cases import assert_same_run, lasting, small


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=600, edges=6000, classes=3, features=8, seed=2, splits=(0.3, 0.2, 0.5))


class Notes(Watcher):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Scripted(Recipe):
    """One weight, which each step raises; validation says what the script has for the epoch."""

    measures = (Measure("score"),)

    def __init__(self, scores: list[float]) -> None:
        self.model, self.scores, self.epoch = nn.Linear(1, 1, bias=False), scores, 0
        with torch.no_grad():
            self.model.weight.zero_()

    def num_batches(self, epoch):
        return 1

    def batches(self, epoch, first):
        self.epoch = epoch
        return iter(range(first, 1))

    def loss(self, batch, clock):
        return Step(-self.model.weight.sum(), 1)

    def validate(self, progress):
        return {"score": self.scores[self.epoch]}

    def test(self, progress):
        return {"test": {"score": float(self.model.weight.detach())}}


def scripted(scores, out, epochs, **more):
    options = RunOptions(epochs=epochs, lr=1.0, optimizer="sgd", threads=1, **more)
    [end], recipe = fit(lambda setup: Scripted(scores), options, out=out, resume=(out / "options.json").exists())
    return end, recipe


@pytest.mark.parametrize("scores", [[3, 1, 2, 0, 5], [1, 2, 3, 4, 5], [1, 3, 2, 1, 1], [5, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("parts", [(2, 5), (3, 5), (1, 3, 4, 5)], ids=str)
def test_the_best_weights_and_the_log_are_those_of_an_uncut_run(tmp_path, scores, parts):
    wanted, _ = scripted(scores, tmp_path / "whole", 5)
    for epochs in parts:
        end, _ = scripted(scores, tmp_path / "parts", epochs)
    best = max(range(5), key=lambda epoch: scores[epoch])
    until_best, _ = scripted(scores, tmp_path / "best", best + 1)
    assert wanted["test_score"] == max(until_best["test_score"], 1.0)  # the weights of the best epoch: each raises them
    assert lasting([end]) == lasting([wanted])
    found, whole = Run(tmp_path / "parts"), Run(tmp_path / "whole")
    assert lasting(found.metrics()) == lasting(whole.metrics())
    assert found.header["options"] == whole.header["options"]


def test_patience_that_is_over_is_over_unless_it_is_raised(tmp_path):
    scores = [5, 1, 1, 1, 9]
    end, _ = scripted(scores, tmp_path / "run", 5, patience=2)
    assert (end["reason"], end["test_score"]) == ("early stop", 1.0)
    again, _ = scripted(scores, tmp_path / "run", 7, patience=2)
    assert again == end  # nothing was left to do
    end, _ = scripted([*scores, 0, 0], tmp_path / "run", 7, patience=4)
    assert (end["reason"], end["best_epoch"]) == ("finished", 4)
    assert end["test_score"] > 5.0


@pytest.mark.parametrize("way", [{"model": "sage"}, {"model": "gcn", "full_batch": True, "norm": "batch"}], ids=str)
def test_node_classification(tmp_path, data, way):
    settings = {"dropout": 0.5, "log_every": 1, **way}
    node(data, options=small(epochs=4, **settings), out=tmp_path / "whole")
    for epochs in (2, 4):
        node(data, options=small(epochs=epochs, **settings), out=tmp_path / "parts", resume=epochs == 4)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("storage", ["device", "disk"])
def test_link_prediction(tmp_path, data, storage):
    more = {"storage": "disk", "partitions": 4, "buffer": 2} if storage == "disk" else {}
    settings = {"dim": 8, "batch_size": 500, "negatives": 20, "threads": 1, "validate_every": 1, **more}
    wanted = link(data, LinkOptions(epochs=4, **settings), out=tmp_path / "whole")
    for epochs in (2, 4):
        result = link(data, LinkOptions(epochs=epochs, **settings), out=tmp_path / "parts", resume=epochs == 4)
    assert result.test == wanted.test
    runs = [lasting(Run(tmp_path / name).metrics("epoch")) for name in ("parts", "whole")]
    parts, whole = ([{key: value for key, value in line.items() if key != "disk"} for line in run] for run in runs)
    assert parts == whole


def test_what_cannot_be_extended_is_refused(tmp_path, data):
    node(data, options=small(epochs=2, schedule="cosine"), out=tmp_path / "cosine")
    with pytest.raises(ValueError, match="by which the learning rate ends with them: a run can have more epochs with"):
        node(data, options=small(epochs=3, schedule="cosine"), out=tmp_path / "cosine", resume=True)
    with pytest.raises(ValueError, match="was begun with epochs 2, not 1: a run that goes on can have more, not fewer"):
        node(data, options=small(epochs=1, schedule="cosine"), out=tmp_path / "cosine", resume=True)


@pytest.mark.parametrize(("scores", "said"), [([1, 2, 3], True), ([1, 3, 2], False), ([1], False)])
def test_a_run_that_was_still_improving_says_so(tmp_path, scores, said):
    notes = Notes()
    options = RunOptions(epochs=len(scores), lr=1.0, threads=1)
    fit(lambda setup: Scripted(scores), options, out=tmp_path / "run", watcher=notes)
    text = f"validation was still improving when the run ended, after {len(scores)} epochs; resume it with more epochs to go on"
    assert any(note.startswith(text) for note in notes.said) == said


def test_what_is_left_open_suits_the_data():
    options = hr.train.NodeOptions()
    small_graph, large_graph = options.suited(140), options.suited(200_000)
    assert (small_graph.epochs, small_graph.patience, small_graph.layers, small_graph.fanout) == (200, 50, 3, (15, 10, 5))
    assert (large_graph.epochs, large_graph.patience) == (10, 2)
    assert (small_graph.weight_decay, large_graph.weight_decay, hr.train.NodeOptions(weight_decay=0).suited(140).weight_decay) == (
        5e-4,
        0,
        0,
    )
    assert options.suited(50_000).epochs == 40
    chosen = hr.train.NodeOptions(epochs=7, full_batch=True).suited(140)
    assert (chosen.epochs, chosen.patience, chosen.layers, chosen.fanout) == (7, 0, 2, ())
    assert chosen.weight_decay == 0  # the epochs were given
    assert chosen.suited(140) == chosen
