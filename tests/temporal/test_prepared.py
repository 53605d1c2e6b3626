"""Batches that were prepared are those that are made, to the bit, and of no other data or options."""

import dataclasses
from time import sleep

import pytest
import torch

import headrace as hr
from headrace.sample import EventNegatives
from headrace.temporal import EventBatches, PreparedBatches, cut_events


@pytest.fixture(scope="module")
def stream():
    return hr.EventStream.of(hr.generate.events(nodes=60, events=900, new=0.02, seed=5, gap=0.7))


def batches(stream, **more):
    negatives = EventNegatives(stream, amount=2, seed=3)
    return EventBatches(stream, cut_events(stream, 0, 600, 100), negatives, **{"neighbors": (4, 3), "group": 2, **more})


def trained(stream, **more):
    base = {"epochs": 2, "hidden": 8, "neighbors": 4, "batch_size": 50, "threads": 1, "candidates": 2, "lr": 1e-3}
    return hr.train.temporal(stream, hr.train.TemporalOptions(**(base | more)))


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("neighbors", [(4,), (4, 3)])
def test_a_batch_that_is_read_is_the_one_that_was_made(stream, tmp_path, real, neighbors):
    if real:
        stream = hr.EventStream(stream.src, stream.dst, stream.time / 3, num_nodes=stream.num_nodes)
    made = batches(stream, neighbors=neighbors)
    prepared = PreparedBatches(made, tmp_path / "here", {"n": 1})
    asked = [(index, since) for index in range(made.num_batches) for since in (0, 150)]
    prepared.prepare(4, asked)
    for index, since in asked:
        a, b = made.make(index, 4, since=since), prepared.make(index, 4, since=since)
        for field in dataclasses.fields(a):
            mine, read = getattr(a, field.name), getattr(b, field.name)
            if field.name == "blocks":
                assert [(x.num_src, x.indptr.tolist(), x.indices.tolist()) for x in mine] == [
                    (x.num_src, x.indptr.tolist(), x.indices.tolist()) for x in read
                ]
            elif isinstance(mine, torch.Tensor):
                assert mine.dtype == read.dtype
                assert torch.equal(mine, read), field.name
            else:
                assert mine == read


@pytest.mark.parametrize("parallel", ["1x1x1", "2x2x2"])
def test_training_has_the_same_bits_with_and_without(stream, tmp_path, parallel, monkeypatch):
    plain = trained(stream, parallel=parallel)
    first = trained(stream, parallel=parallel, prepared=str(tmp_path / "p"))
    monkeypatch.setattr("headrace.temporal.prepared._packed", None)  # nothing is written any more
    again = trained(stream, parallel=parallel, prepared=str(tmp_path / "p"))
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, first.model.state_dict()[name])
        assert torch.equal(weight, again.model.state_dict()[name])


def test_the_time_that_preparing_takes_counts_in_the_rate(stream, tmp_path, monkeypatch):
    right, slept = PreparedBatches.prepare, []

    def slowly(*given, **more):
        sleep(0.2)
        slept.append(0.2)
        return right(*given, **more)

    monkeypatch.setattr(PreparedBatches, "prepare", slowly)
    result = trained(stream, prepared=str(tmp_path / "p"))
    assert len(slept) >= 2  # epochs
    assert result.events_per_second < 2 * stream.splits().train / sum(slept)


def test_a_directory_of_something_else_is_refused_by_name(stream, tmp_path):
    made = batches(stream)
    PreparedBatches(made, tmp_path / "here", {"seed": 1, "neighbors": [4, 3]})
    PreparedBatches(made, tmp_path / "here", {"seed": 1, "neighbors": [4, 3]})
    with pytest.raises(ValueError, match=r"was prepared with seed = 1, and this run has 2: give prepared another directory"):
        PreparedBatches(made, tmp_path / "here", {"seed": 2, "neighbors": [4, 3]})
    other = hr.EventStream(stream.dst, stream.src, stream.time, num_nodes=stream.num_nodes)
    with pytest.raises(ValueError, match=r"was prepared with dst = int\[900\]"):
        PreparedBatches(batches(other), tmp_path / "here", {"seed": 1, "neighbors": [4, 3]})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="holds other files and no batches"):
        PreparedBatches(made, tmp_path, {})


def test_damage_is_named_and_half_an_epoch_is_none(stream, tmp_path, monkeypatch):
    made = batches(stream)
    prepared = PreparedBatches(made, tmp_path / "here", {})
    right = EventBatches.make

    def broken(self, index, *rest, **more):
        if index == 2:
            raise KeyboardInterrupt
        return right(self, index, *rest, **more)

    monkeypatch.setattr(EventBatches, "make", broken)
    asked = [(index, 0) for index in range(made.num_batches)]
    with pytest.raises(KeyboardInterrupt):
        prepared.prepare(0, asked)
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["meta.json"]
    monkeypatch.setattr(EventBatches, "make", right)
    prepared.prepare(0, asked)
    path = tmp_path / "here" / "epoch-0.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"batch \d of epoch 0 in .* is damaged: delete .*, and it is prepared again"):
        for index, since in asked:
            prepared.make(index, 0, since=since)
