"""Training from parts: each rank has its own part alone, and the run is that of the whole dataset."""

import shutil
from dataclasses import fields

import pytest
import torch

import parts_training
from headrace.cluster import Part, cut, partition
from headrace.train import Run, node
from headrace.train.nodes.over_ranks.over_parts import SplitData
from parts_training import dataset
from rank_jobs import Job

RANKS = 3
CASES = ["sage:columns", "gcn:columns", "gat:columns", "gatv2:rows", "gcn:rows", "sage:push_pull", "gin:data"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs from parts, each part in a folder of its own."""
    folder = tmp_path_factory.mktemp("parts")
    for kind, by in (("columns", "hash"), ("rows", "ldg")):
        partition(dataset(), folder / kind, parts=RANKS, by=by, columns=kind == "columns")
        for rank in range(RANKS):
            shutil.move(folder / kind / f"part-{rank}", folder / f"{kind}-{rank}")
        shutil.rmtree(folder / kind)
    job = Job(parts_training.__file__, [folder, *CASES], size=RANKS, folder=folder)
    try:
        assert job.wait(300) == [0] * RANKS, "\n".join(job.said(rank) for rank in range(RANKS))
    finally:
        job.end()
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_run_is_that_of_the_whole_dataset(trained, case):
    model, kind = case.split(":")
    whole = node(dataset(), parts_training.options(model), out=trained / f"whole-{model}-{kind}")
    wanted, found = whole.model.state_dict(), torch.load(trained / f"{model}-{kind}.pt")
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    for name, tensor in wanted.items():
        assert float((found[name] - tensor).abs().max()) <= 1e-5 * largest, name
    lines = [Run(trained / run).metrics() for run in (f"whole-{model}-{kind}", f"{model}-{kind}")]
    for before, after in zip(*lines, strict=True):
        for name in ("loss", "val_loss", "test_loss", "val_accuracy", "test_accuracy", "nodes", "edges"):
            assert (name in after) == (name in before), (before["kind"], name)
            if name in before:
                assert after[name] == pytest.approx(before[name], rel=1e-5), (before["kind"], name)
    about = Run(trained / f"{model}-{kind}").header["dataset"]
    assert (about["nodes"], about["edges"], about["features"]) == (600, dataset().num_edges, 37)


def test_a_part_needs_as_many_ranks_as_there_are_parts(trained):
    with pytest.raises(
        ValueError, match=r"cut into 3 parts, and there are 1 ranks: start 3 of them \(torchrun --nproc-per-node 3\)"
    ):
        node(Part.open(trained / "columns-0"), parts_training.options("sage"))


def test_options_that_need_the_whole_dataset_are_refused(trained):
    part = Part.open(trained / "rows-1")
    for more, name in (
        ({"full_batch": True, "fanout": ()}, "full_batch"),
        ({"validate": "sampled"}, "validate"),
        ({"split": "1"}, "split"),
        ({"topology": "replicated"}, "topology"),
    ):
        with pytest.raises(ValueError, match=f"{name} .* needs the whole dataset"):
            SplitData.of(part, parts_training.options("sage", **more))


def test_one_part_is_no_partition(tmp_path):
    partition(dataset(), tmp_path / "one", parts=1, columns=True)
    with pytest.raises(ValueError, match="one part is the whole dataset: train on that"):
        node(Part.open(tmp_path / "one", 0), parts_training.options("sage"))


@pytest.mark.parametrize("columns", [False, True])
def test_a_part_in_memory_is_the_one_that_partition_writes(tmp_path, columns):
    partition(dataset(), tmp_path / "parts", parts=RANKS, columns=columns)
    for rank in range(RANKS):
        written, made = Part.open(tmp_path / "parts", rank), cut(dataset(), rank, parts=RANKS, columns=columns)
        for field in fields(Part):
            before, after = getattr(written, field.name), getattr(made, field.name)
            if isinstance(before, torch.Tensor):
                assert torch.equal(before, after), field.name
            elif isinstance(before, dict) and before and isinstance(next(iter(before.values())), torch.Tensor):
                assert all(torch.equal(before[name], after[name]) for name in before | after), field.name
            elif field.name == "owners":
                assert before.fingerprint == after.fingerprint
            else:
                assert before == after, field.name


def test_one_rank_alone_has_the_whole_graph(tmp_path):
    split, usual = (node(dataset(), parts_training.options("sage", topology=how)) for how in ("split", "auto"))
    for name, tensor in usual.model.state_dict().items():
        assert torch.equal(split.model.state_dict()[name], tensor)
