"""Of which class events are: losses, figures and heuristics; and labels that are none."""

import re

import pytest
import torch
import torch.nn.functional as F

import headrace as hr
from headrace.temporal.heuristics import LabelHistory
from headrace.train.events.heads import ClassHead, _macro_f1


def options(**more):
    base = {"epochs": 3, "hidden": 16, "neighbors": 4, "batch_size": 40, "threads": 1, "task": "edge_class", "lr": 0.01}
    return hr.train.TemporalOptions(**(base | more))


def labelled(classes=2, *, events=1500):
    """Events whose class is mostly their destination's."""
    plain = hr.EventStream.of(hr.generate.events(nodes=60, events=events, new=0.02, seed=5))
    noise = torch.rand(events, generator=torch.Generator().manual_seed(0)) < 0.1
    label = torch.where(noise, torch.arange(events) % classes, plain.dst % classes)
    return hr.EventStream(plain.src, plain.dst, plain.time, label=label, num_nodes=60)


def test_classes_of_destinations_are_learnt_with_static_rows():
    result = hr.train.temporal(labelled(), options(static="learned", static_epochs=3))
    assert result.test["auc"] > 0.8 > result.test["heuristic"]["majority"]["auc"] == 0.5
    assert {"auc", "ap", "f1_micro"} <= set(result.test)
    assert result.test["protocol"]["classes"] == [0, 1]
    assert result.test["heuristic"]["history"]["auc"] > 0.8


def test_several_classes_have_f1_alone_and_any_integers_are_classes():
    stream = labelled(3)
    stream.label = stream.label * 10 - 10
    result = hr.train.temporal(stream, options(epochs=1, repeats=2))
    assert result.test["protocol"]["classes"] == [-10, 0, 10]
    assert "auc" not in result.test
    assert set(result.summary()["test"]["f1_macro"]) == {"mean", "std", "values"}
    assert set(result.test["heuristic"]["majority"]) == {"f1_micro", "f1_macro", "inductive"}


def test_the_loss_is_the_cross_entropy_of_the_events_class():
    stream = labelled(3)
    head = ClassHead(stream, stream.splits().train)
    tgn = hr.nn.TGN(memory=4, time=4, out=4, classes=3)
    z = torch.randn(20, 4, requires_grad=True)

    class Batch:
        event, size, lanes = slice(100, 110), 10, 1

    class Model:
        pass

    Model.tgn = tgn
    loss = head.losses(Model, z, Batch).mean()
    logits = tgn.decoder.out_fc((tgn.decoder.src_fc(z[:10]) + tgn.decoder.dst_fc(z[10:])).relu())
    torch.testing.assert_close(loss, F.cross_entropy(logits, stream.label[100:110].long()))
    loss.backward()
    assert bool(z.grad.any())


def test_figures_of_classes_are_those_of_their_definitions():
    chosen, labels = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 0])
    # of class 0: 1 right of 2 chosen, 2 true; of 1: 2 of 2, 3; of 2: 0 of 1, 0; class 3 does not occur
    assert _macro_f1(chosen, labels, 4) == pytest.approx((2 / 4 + 4 / 5 + 0) / 3)
    stream = labelled()
    head = ClassHead(stream, stream.splits().train)
    events = torch.tensor([7, 8, 9, 10])
    right = F.one_hot(stream.label[events].long(), 2).double()
    assert head.measured(right, events)["f1_micro"] == 1
    assert head.measured(1 - right, events)["f1_micro"] == 0


def test_history_has_events_of_the_destination_before_a_place_alone():
    stream = labelled(3)
    train = stream.splits().train
    history = LabelHistory(stream, stream.label.long(), 3, train)
    before = torch.tensor([0, 3, 700, 1500])
    dst = torch.tensor([int(stream.dst[0]), int(stream.dst[0]), int(stream.dst[650]), int(stream.dst[4])])
    shares = history.shares(dst, before)
    prior = torch.bincount(stream.label[:train].long(), minlength=3).double() / train
    for node, place, row in zip(dst, before, shares, strict=True):
        seen = stream.label[:place][stream.dst[:place] == node].long()
        torch.testing.assert_close(row, (torch.bincount(seen, minlength=3) + prior) / (len(seen) + 1))


def test_labels_of_a_dataset_are_named_by_an_option_and_follow_their_events(tmp_path):
    stream = labelled(events=400)
    rating = torch.where(stream.label > 0, 5, -3)
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    graph = hr.Graph.from_edges(stream.src[shuffled], stream.dst[shuffled], 60, time=stream.time[shuffled], edge_id=True)
    data = hr.Dataset(graph, extra={"rating": rating[shuffled].to(torch.int8)})
    again = hr.EventStream.of(data, label="rating")
    key = [
        sorted(zip(s.time.tolist(), s.src.tolist(), s.dst.tolist(), label.tolist(), strict=True))
        for s, label in ((stream, rating), (again, again.label))
    ]
    assert key[0] == key[1]
    result = hr.train.temporal(data, options(epochs=1, label="rating"))
    assert result.test["protocol"]["classes"] == [-3, 5]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (None, "edge_class needs a class for every event, and the data has none"),
        (torch.zeros(1500, dtype=torch.int64), "events have 1 different labels: edge_class needs from 2 to 1024 classes"),
        (torch.arange(1500), "events have 1500 different labels"),
        ((torch.arange(1500) > 1400).long(), "all 1050 training events have label 0: there is nothing to tell apart"),
    ],
)
def test_labels_that_are_no_classes_are_refused(label, said):
    plain = labelled()
    stream = hr.EventStream(plain.src, plain.dst, torch.arange(1500), label=label)
    with pytest.raises(ValueError, match=re.escape(said)):
        hr.train.temporal(stream, options())


def test_a_label_that_the_data_has_not_is_named():
    with pytest.raises(ValueError, match="extra has no array 'rated' of classes: it has src, dst, time"):
        hr.train.temporal(hr.generate.events(nodes=20, events=100), options(label="rated"))
