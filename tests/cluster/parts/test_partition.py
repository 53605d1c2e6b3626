"""`partition`: parts put together are the dataset, figures are what a plain count gives, and no failure leaves half of it."""

import errno
import json
import os
import shutil
import sys
import types

import pytest
import torch

import headrace as hr
from headrace import _memory
from headrace.cluster import Part, estimate, is_partition, partition
from headrace.cluster.parts import own_edges, share
from headrace.graph.saved import array_file
from headrace.store import TableOwners, column_bounds, hash_owners
from part_cases import assert_same_dataset, cases, featureless, same_bits, together

CASES, FEATURELESS = cases(), featureless()


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(own_edges, "_ROWS", 4)
    monkeypatch.setattr(own_edges, "_EDGES", 7)
    monkeypatch.setattr(share, "_PIECE", 100)
    monkeypatch.setattr("headrace.cluster.parts.partition._AT_ONCE", 2)


@pytest.fixture
def by_thirds(monkeypatch):
    """METIS that gives node v to part v mod 3, whatever the number of parts."""
    part_graph = lambda parts, xadj, adjncy: (0, [v % min(parts, 3) for v in range(len(xadj) - 1)])  # noqa: E731
    monkeypatch.setitem(sys.modules, "pymetis", types.SimpleNamespace(part_graph=part_graph))


def opened(path):
    return [
        Part.open(path, number, verify=True) for number in range(json.loads((path / "partition.json").read_text())["info"]["parts"])
    ]


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("by", ["hash", "ldg", "rabbit", "metis"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("by_thirds")
def test_parts_put_together_are_the_dataset(tmp_path, name, by, columns):
    partition(CASES[name], tmp_path / "parts", parts=3, by=by, columns=columns)
    assert_same_dataset(together(opened(tmp_path / "parts")), CASES[name])


@pytest.mark.parametrize("by", ["hash", "ldg"])
@pytest.mark.parametrize("name", FEATURELESS)
def test_features_may_be_missing_or_of_another_shape(tmp_path, name, by):
    partition(FEATURELESS[name], tmp_path / "parts", parts=4, by=by)
    assert_same_dataset(together(opened(tmp_path / "parts")), FEATURELESS[name])


@pytest.mark.parametrize("columns", [False, True])
def test_one_part_is_the_whole(tmp_path, columns):
    data = CASES["all of an edge"]
    summary = partition(data, tmp_path / "parts", parts=1, columns=columns)
    assert_same_dataset(together(opened(tmp_path / "parts")), data)
    assert (summary.edge_cut, summary.ghosts, summary.node_balance, summary.edge_balance) == (0, 0, 1, 1)


def test_a_dataset_in_a_directory_gives_the_same_parts(tmp_path):
    CASES["plain"].save(tmp_path / "data")
    for columns in (False, True):
        partition(hr.open(tmp_path / "data"), tmp_path / f"{columns}", parts=3, columns=columns)
        assert_same_dataset(together(opened(tmp_path / f"{columns}")), CASES["plain"])


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_columns_are_cut_evenly_for_any_width(tmp_path, parts):
    data = CASES["plain"]
    partition(data, tmp_path / "parts", parts=parts, columns=True)
    for part, (begin, end) in zip(opened(tmp_path / "parts"), column_bounds(7, parts), strict=True):
        assert part.columns == (begin, end)
        assert same_bits(part.x, data.x[:, begin:end])
        assert part.num_features == 7


def test_owners_by_hash_need_no_table(tmp_path):
    partition(CASES["plain"], tmp_path / "parts", parts=3)
    for number, part in enumerate(opened(tmp_path / "parts")):
        assert part.owners == hash_owners(40, 3)
        assert part.ids.equal(hash_owners(40, 3).ids_of(number))
    assert not list((tmp_path / "parts").rglob("owner*"))


@pytest.mark.usefixtures("by_thirds")
def test_a_table_of_owners_is_in_every_part_and_beside_them(tmp_path):
    partition(CASES["plain"], tmp_path / "parts", parts=3, by="metis")
    table = torch.arange(40) % 3
    assert all(part.owners.fingerprint == TableOwners(table, 3).fingerprint for part in opened(tmp_path / "parts"))
    assert len(list((tmp_path / "parts").rglob("owner.*.npy"))) == 4


@pytest.mark.usefixtures("by_thirds")
def test_parts_without_nodes_are_parts(tmp_path):
    data = CASES["plain"]
    summary = partition(data, tmp_path / "parts", parts=5, by="metis")
    parts = opened(tmp_path / "parts")
    assert [len(part.ids) for part in parts] == [14, 13, 13, 0, 0]
    assert parts[4].x.shape == (0, 7)
    assert parts[4].splits["train"].tolist() == []
    assert_same_dataset(together(parts), data)
    assert summary.node_balance == pytest.approx(14 / 8)


@pytest.mark.parametrize("by", ["hash", "ldg", "metis"])
@pytest.mark.parametrize("name", ["plain", "a hub", "no edges", "times and ids"])
@pytest.mark.usefixtures("by_thirds")
def test_figures_are_those_of_a_plain_count(tmp_path, name, by):
    data = CASES[name]
    summary = partition(data, tmp_path / "parts", parts=3, by=by)
    parts = opened(tmp_path / "parts")
    owner = parts[0].owners.locate(torch.arange(data.num_nodes))[0].tolist()
    pairs = data.graph.edge_index().T.tolist()
    for number, of in enumerate(summary.shares):
        cut = [source for source, target in pairs if owner[target] == number != owner[source]]
        assert (of.cut_edges, of.ghosts) == (len(cut), len(set(cut)))
        assert of.nodes == owner.count(number)
        assert of.edges == sum(owner[target] == number for _, target in pairs)
        assert of.bytes == sum(file.stat().st_size for file in (tmp_path / "parts" / f"part-{number}").iterdir())
    cut = sum(owner[source] != owner[target] for source, target in pairs)
    assert summary.edge_cut == (cut / len(pairs) if pairs else 0)
    assert summary.ghosts == sum(of.ghosts for of in summary.shares)
    assert summary.node_balance == max(owner.count(part) for part in range(3)) * 3 / len(owner)
    info = json.loads((tmp_path / "parts" / "partition.json").read_text())["info"]
    assert info["edge_cut"] == summary.edge_cut
    assert [of["ghosts"] for of in info["shares"]] == [of.ghosts for of in summary.shares]


def test_the_file_of_a_partition_says_what_it_is(tmp_path):
    data = hr.Dataset(CASES["many labels"].graph, x=CASES["plain"].x, y=CASES["many labels"].y, splits=CASES["plain"].splits)
    data.info["name"], data.extra["further"] = "small", torch.ones(2)
    summary = partition(data, tmp_path / "parts", parts=2, columns=True)
    written = json.loads((tmp_path / "parts" / "partition.json").read_text())
    assert (written["format"], written["kind"]) == (1, "partition")
    expected = {
        "parts": 2,
        "by": "hash",
        "columns": True,
        "num_nodes": 40,
        "num_edges": 160,
        "num_features": 7,
        "num_classes": 6,
        "feature_type": "float32",
        "multi_label": True,
        "split_sizes": {"train": 15, "val": 5, "none": 0},
        "info": {"name": "small"},
        "left_out": ["further"],
    }
    assert {name: written["info"][name] for name in expected} == expected
    assert summary.left_out == ("further",)
    assert written["info"]["fingerprint"] == Part.open(tmp_path / "parts", 1).fingerprint
    assert written["info"]["fingerprint"]["features"].startswith("float32[40,7]:")


def test_progress_rises_to_its_end(tmp_path):
    told = []
    partition(CASES["plain"], tmp_path / "parts", parts=3, by="ldg", progress=lambda *step: told.append(step))
    assert next(what for what, _, _ in told if what != "finding owners") == "writing parts"
    for stage in ("finding owners", "writing parts"):
        done = [done for what, done, _ in told if what == stage]
        assert done == sorted(done)
        assert done[-1] > 0
    assert told[-1][0] == "finishing"
    assert max(done for what, done, _ in told if what == "finding owners") == 8 * 40


@pytest.mark.parametrize("parts", [2, 5])
def test_owners_that_look_at_edges_cut_far_fewer_than_a_hash(tmp_path, parts, monkeypatch):
    monkeypatch.undo()  # pieces of the size they have
    data = hr.generate.community(nodes=4000, edges=60_000, classes=20, features=2, homophily=0.9, seed=1)
    cuts = {by: partition(data, tmp_path / by, parts=parts, by=by) for by in ("hash", "ldg", "rabbit")}
    assert max(cuts["ldg"].edge_cut, cuts["rabbit"].edge_cut) < 0.5 * cuts["hash"].edge_cut
    assert max(cuts["ldg"].node_balance, cuts["rabbit"].node_balance) <= 1.05


def test_the_estimate_of_the_disk_is_close(tmp_path, monkeypatch):
    monkeypatch.undo()  # pieces of the size they have
    data = hr.generate.community(nodes=3000, edges=60_000, classes=5, features=50)
    for by, columns in (("hash", False), ("ldg", False), ("hash", True)):
        out = tmp_path / f"{by}{columns}"
        partition(data, out, parts=4, by=by, columns=columns)
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
        assert size <= estimate(data, parts=4, by=by).disk < 1.2 * size


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("plain", {"parts": 0}, "parts must be from 1 to the number of nodes, 40, not 0"),
        ("plain", {"parts": 41}, "parts must be from 1 to the number of nodes, 40, not 41"),
        ("plain", {"parts": 2, "by": "hsah"}, "there is no partition by 'hsah': choose one of hash, ldg, rabbit, metis"),
        ("plain", {"parts": 8, "columns": True}, "7 columns of features cannot be cut into 8 parts: choose at most 7"),
        ("no features", {"parts": 2, "columns": True}, "there are no features whose columns could be cut"),
        ("a matrix each", {"parts": 2, "columns": True}, r"features of shape \[40, 2, 3\] have no columns"),
        ("one number", {"parts": 2, "columns": True}, "1 columns of features cannot be cut into 2 parts"),
    ],
)
def test_bad_arguments_are_named(tmp_path, name, options, told):
    with pytest.raises(ValueError, match=told):
        partition((CASES | FEATURELESS)[name], tmp_path / "parts", **options)
    assert not (tmp_path / "parts").exists()


def test_metis_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"a partition by 'metis' needs pymetis: pip install pymetis, or headrace\[reorder\]"):
        partition(CASES["plain"], tmp_path / "parts", parts=2, by="metis")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (hr.Dataset(hr.Graph(torch.tensor([0, 1, 2]), torch.tensor([1, 7]))), ValueError),
        (hr.Dataset(hr.Graph.from_edges([0], [1]), splits={"train": torch.tensor([5])}), IndexError),
        (hr.Dataset(hr.Graph.from_edges([0], [1]), info={"bad": object()}), TypeError),
        ("a text", TypeError),
    ],
    ids=["an id of no node", "a split of no node", "info", "type"],
)
def test_bad_data_is_refused_and_leaves_nothing(tmp_path, data, error):
    with pytest.raises(error):
        partition(data, tmp_path / "parts", parts=2)
    assert not (tmp_path / "parts").exists()


def test_too_little_disk_or_memory_is_told_before_the_work(tmp_path, monkeypatch):
    data = CASES["plain"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1000))
    with pytest.raises(
        ValueError, match=r"a partition by 'hash' needs about .* KiB of disk in .*, and 1000 bytes are free: make room"
    ):
        partition(data, tmp_path / "parts", parts=2)
    monkeypatch.undo()
    monkeypatch.setattr(_memory, "machine_memory", lambda: 1 << 20)
    with pytest.raises(ValueError, match=r"a partition by 'metis' would take .* of memory, and there are .*: choose by 'ldg'"):
        partition(data, tmp_path / "parts", parts=2, by="metis")
    assert not (tmp_path / "parts").exists()


def test_what_is_there_is_not_touched(tmp_path):
    data = CASES["plain"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file: a partition is a directory"):
        partition(data, tmp_path / "file", parts=2)
    for name in ("thesis.tex", "part-0"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        with pytest.raises(FileExistsError, match="holds other files and is not a partition: choose another directory"):
            partition(data, tmp_path / "folder", parts=2)
    assert files_of(tmp_path / "folder") == ["part-0", "thesis.tex"]
    data.save(tmp_path / "data")
    with pytest.raises(FileExistsError, match="holds other files and is not a partition"):
        partition(data, tmp_path / "data", parts=2)
    partition(data, tmp_path / "parts", parts=2)
    before = files_of(tmp_path / "parts")
    with pytest.raises(FileExistsError, match="parts holds a partition already: remove it, or choose another directory"):
        partition(data, tmp_path / "parts", parts=3)
    assert files_of(tmp_path / "parts") == before
    for place in (tmp_path / "parts", tmp_path / "parts" / "part-0"):
        with pytest.raises(FileExistsError, match="holds other files and is not a dataset"):
            data.save(place)
    assert_same_dataset(together(opened(tmp_path / "parts")), data)


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "parts").mkdir()
    partition(CASES["plain"], tmp_path / "parts", parts=2)
    assert is_partition(tmp_path / "parts")


# ---- failures


def count_calls(monkeypatch, where, name, *, fail_at=None, error=None):
    calls, function = [], getattr(where, name)

    def counted(*arguments, **keywords):
        calls.append(name)
        if len(calls) - 1 == fail_at:
            raise error
        return function(*arguments, **keywords)

    monkeypatch.setattr(where, name, counted)
    return calls


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("where", "name"), [(os, "fsync"), (os, "replace"), (array_file.ArrayFile, "append")])
def test_a_full_disk_at_any_moment_leaves_nothing_or_all(tmp_path, monkeypatch, where, name, columns):
    data = CASES["times and ids"]
    with monkeypatch.context() as patch:
        counted = count_calls(patch, where, name)
        partition(data, tmp_path / "counted", parts=3, columns=columns)
        calls = len(counted)
    assert calls >= 3
    for fail_at in {*range(0, calls, max(1, calls // 3)), calls - 1}:
        out = tmp_path / f"out-{fail_at}"
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            count_calls(patch, where, name, fail_at=fail_at, error=full)
            partition(data, out, parts=3, columns=columns)
        if not is_partition(out):  # only the last flush, of the directory, fails when all is there
            assert not out.exists()
            partition(data, out, parts=3, columns=columns)
        assert_same_dataset(together(opened(out)), data)


@pytest.mark.parametrize("moment", [0, 3, 11, 25])
def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch, moment):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        count_calls(patch, array_file.ArrayFile, "append", fail_at=moment, error=KeyboardInterrupt())
        partition(CASES["plain"], tmp_path / "parts", parts=3)
    assert files_of(tmp_path) == []


def test_a_list_of_parts_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """The last step fails, when all parts are complete."""
    replace = os.replace

    def fails(source, target):
        if str(target).endswith("partition.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "replace", fails)
        partition(CASES["plain"], tmp_path / "parts", parts=3)
    assert files_of(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    out = tmp_path / "parts"
    partition(CASES["weights"], out, parts=5)
    (out / "partition.json").rename(out / "partition.json.new")  # as if it had been killed before the last step
    (out / ".lock").touch()
    (out / "part-5").mkdir()
    (out / "part-5" / "indices.1.npy").write_bytes(b"half of an arr")
    (out / "part-5" / "meta.json.new").touch()
    assert not is_partition(out)
    with pytest.raises(FileNotFoundError, match="is not a partition: its writing was interrupted"):
        Part.open(out, 0)
    assert Part.open(out / "part-1").number == 1  # whole, as each is
    partition(CASES["plain"], out, parts=3)
    assert sorted(file.name for file in out.iterdir()) == ["part-0", "part-1", "part-2", "partition.json"]
    assert_same_dataset(together(opened(out)), CASES["plain"])


def test_a_second_writer_waits_and_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.graph.saved.io._PATIENCE", 0.05)

    def second(what, done, total):
        if what == "writing parts":
            with pytest.raises(BlockingIOError, match="parts is being written by process"):
                partition(CASES["plain"], tmp_path / "parts", parts=2)

    partition(CASES["plain"], tmp_path / "parts", parts=2, progress=second)
