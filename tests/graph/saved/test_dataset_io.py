"""Dataset directories: what is saved is what is opened, and no failure ever leaves half of it."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import headrace as hr
from forked import FORK, Child
from headrace.graph.saved import array_file, io

DTYPES = [
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def ring(nodes=6, **rows):
    return hr.Dataset(hr.Graph.from_edges(np.arange(nodes), (np.arange(nodes) + 1) % nodes), **rows)


def values(shape, dtype):
    return torch.randn(shape).mul(50).to(dtype)


def assert_same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.numel():  # bit by bit: NaN too
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def assert_same_dataset(a, b):
    left, right = a._arrays(), b._arrays()
    assert left.keys() == right.keys()
    for name in left:
        assert_same(left[name], right[name])
    assert a.info == b.info


def files_of(path):
    return sorted(f.name for f in path.iterdir())


def resident_bytes():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


# ---- what is saved is what is opened


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 3), (6,), (6, 0), (6, 2, 2)], ids=str)
def test_every_type_and_shape_comes_back(tmp_path, dtype, shape):
    data = ring(x=values(shape, dtype), extra={"more": values((5, *shape[1:]), dtype), "none": torch.empty(0, dtype=dtype)})
    data.save(tmp_path / "d")
    assert_same_dataset(hr.open(tmp_path / "d", verify=True), data)


def test_special_values_keep_their_bits(tmp_path):
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38])
    data = ring(x=odd.to(torch.bfloat16).unsqueeze(1), extra={"f": odd, "h": odd.half()})
    data.save(tmp_path / "d")
    assert_same_dataset(hr.open(tmp_path / "d"), data)


def test_a_whole_dataset_comes_back(tmp_path):
    graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0], weight=[0.5, 1.5, 2.5], edge_id=True, self_loops="add")
    data = hr.Dataset(
        graph,
        x=torch.randn(3, 4),
        y=torch.tensor([0, 2, 1]),
        splits={"train": torch.tensor([True, False, True]), "my-own_1": torch.tensor([2])},
        extra={"one": torch.tensor(7.0), "triples": torch.arange(6).view(2, 3)},
        info={"name": "tiny", "nested": {"a": [1, 2.5, None, True]}, "unicode": "grün"},
    )
    data.save(tmp_path / "d")
    opened = hr.open(str(tmp_path / "d"))
    assert_same_dataset(opened, data)
    assert opened.splits["train"].tolist() == [0, 2]
    assert opened.num_classes == 3
    assert opened.extra["one"].shape == ()


def test_an_empty_graph_comes_back(tmp_path):
    hr.Dataset(hr.Graph.from_edges([], [], 0)).save(tmp_path / "d")
    opened = hr.open(tmp_path / "d", verify=True)
    assert (opened.num_nodes, opened.num_edges, opened.x) == (0, 0, None)


def test_int64_indices_stay_int64(tmp_path):
    hr.Dataset(hr.Graph(torch.tensor([0, 1, 2]), torch.tensor([1, 0]))).save(tmp_path / "d")
    assert hr.open(tmp_path / "d").graph.indices.dtype == torch.int64


def test_strided_rows_are_saved_in_order(tmp_path):
    x = torch.arange(24.0).view(4, 6).T
    assert not x.is_contiguous()
    ring(x=x).save(tmp_path / "d")
    assert torch.equal(hr.open(tmp_path / "d").x, x)


def test_arrays_written_in_pieces_equal_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(array_file, "_CHUNK", 7)
    monkeypatch.setattr(io, "_CHUNK", 7)
    x = torch.randn(6, 3, dtype=torch.float64)
    with io.DatasetWriter(tmp_path / "d") as writer:
        for name in ("indptr", "indices"):
            writer.write(name, getattr(ring().graph, name))
        file = writer.array("x", x.dtype, tuple(x.shape))
        for row in x:
            file.append(row)
    assert torch.equal(hr.open(tmp_path / "d", verify=True).x, x)


@pytest.mark.parametrize("rows", [5, 7])
def test_an_array_must_have_as_many_rows_as_declared(tmp_path, rows):
    with pytest.raises(ValueError, match=r"x\.1\.npy was declared with shape \(6, 3\)"), io.DatasetWriter(tmp_path / "d") as writer:
        writer.array("x", torch.float32, (6, 3)).append(torch.zeros(rows, 3))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["a/b", "../up", "", "1st", "a.b", "a b"])
def test_array_names_cannot_leave_the_directory(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be the name of an array"), io.DatasetWriter(tmp_path / "d") as writer:
        writer.write(name, torch.zeros(1))
    assert not (tmp_path / "d").exists()


# ---- memory maps


def test_changing_an_opened_tensor_does_not_change_the_file(tmp_path):
    ring(x=torch.ones(6, 2)).save(tmp_path / "d")
    opened = hr.open(tmp_path / "d")
    opened.x.mul_(5)
    opened.graph.indices.zero_()
    again = hr.open(tmp_path / "d", verify=True)
    assert again.x.eq(1).all()
    assert opened.x.eq(5).all()
    again.graph.validate()


def test_opening_is_quick_and_reads_nothing(tmp_path):
    rows, width = 1 << 20, 1 << 10  # 4 GiB, all of it a hole in the file
    ring(1 << 20, extra={"big": torch.zeros(1)}).save(tmp_path / "d")
    meta = json.loads((tmp_path / "d" / "meta.json").read_text())
    del meta["crc32"]
    entry = meta["arrays"].pop("extra_big")
    file = tmp_path / "d" / entry["file"]
    with open(file, "wb") as f:
        np.lib.format.write_array_header_2_0(f, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
        f.truncate(f.tell() + rows * width * 4)
    meta["arrays"]["x"] = entry | {"shape": [rows, width]}
    (tmp_path / "d" / "meta.json").write_text(json.dumps(meta))

    before, start = resident_bytes(), time.perf_counter()
    data = hr.open(tmp_path / "d")
    took = time.perf_counter() - start
    assert data.x.nbytes == 4 << 30
    assert took < 0.5
    assert resident_bytes() - before < 16 << 20
    assert data.x[rows - 1, width - 1] == 0


# ---- saving over what is there


def test_a_dataset_may_be_saved_over_the_directory_it_was_opened_from(tmp_path):
    ring(x=torch.full((6, 2), 1.0)).save(tmp_path / "d")
    first = hr.open(tmp_path / "d")
    for version in range(2, 5):
        data = hr.open(tmp_path / "d")
        data.x.add_(1)
        data.save(tmp_path / "d")
        assert hr.open(tmp_path / "d", verify=True).x.eq(version).all()
    assert first.x.eq(1).all()  # the oldest reader still sees what it opened
    assert files_of(tmp_path / "d") == ["indices.4.npy", "indptr.4.npy", "meta.json", "x.4.npy"]


def test_a_smaller_version_leaves_no_file_of_the_larger_one(tmp_path):
    ring(x=torch.zeros(6, 2), y=torch.zeros(6)).save(tmp_path / "d")
    ring().save(tmp_path / "d")
    opened = hr.open(tmp_path / "d")
    assert opened.x is None
    assert opened.y is None
    assert files_of(tmp_path / "d") == ["indices.2.npy", "indptr.2.npy", "meta.json"]


def failing(function, call_number):
    """`function`, but its call number `call_number` (from 0) raises."""
    calls = iter(range(1_000_000))

    def wrapped(*arguments, **keywords):
        if next(calls) == call_number:
            raise OSError(28, "No space left on device")
        return function(*arguments, **keywords)

    return wrapped


def test_a_failure_while_an_array_is_made_leaves_the_old_version(tmp_path):
    old = ring(x=torch.ones(6, 2))
    old.save(tmp_path / "d")
    names = files_of(tmp_path / "d")

    def write_half():
        with io.DatasetWriter(tmp_path / "d") as writer:
            writer.write("indptr", old.graph.indptr)
            writer.array("x", torch.float32, (6, 2)).append(torch.zeros(3, 2))
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert files_of(tmp_path / "d") == names
    assert_same_dataset(hr.open(tmp_path / "d", verify=True), old)


def test_a_failure_of_the_first_save_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        ring(info={"bad": object()}).save(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_failure_to_write_meta_json_leaves_the_old_version(tmp_path):
    old = ring(x=torch.ones(6, 2))
    old.save(tmp_path / "d")
    names = files_of(tmp_path / "d")
    with pytest.raises(TypeError):
        ring(info={"bad": object()}).save(tmp_path / "d")
    assert files_of(tmp_path / "d") == names
    assert_same_dataset(hr.open(tmp_path / "d", verify=True), old)


def test_a_failing_rename_leaves_the_old_version(tmp_path, monkeypatch):
    old = ring(x=torch.ones(6, 2))
    old.save(tmp_path / "d")
    names = files_of(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(os.replace, 0))
        with pytest.raises(OSError, match="No space left"):
            ring(x=torch.zeros(6, 2)).save(tmp_path / "d")
    assert files_of(tmp_path / "d") == names
    assert_same_dataset(hr.open(tmp_path / "d", verify=True), old)


@pytest.mark.parametrize(
    "call_number",
    [
        0,
        1,
        2,
        3,
        4,
    ],
)
def test_a_failing_fsync_leaves_a_complete_version(tmp_path, monkeypatch, call_number):
    """Calls 0 to 2 are for the arrays, 3 is for meta.json, 4 for the directory, when the new version stands already."""
    old, new = ring(x=torch.ones(6, 2)), ring(x=torch.zeros(6, 2))
    old.save(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync, call_number))
        with pytest.raises(OSError, match="No space left"):
            new.save(tmp_path / "d")
    assert_same_dataset(hr.open(tmp_path / "d", verify=True), old if call_number < 4 else new)


def test_every_file_and_the_directory_are_on_disk_before_old_files_go(tmp_path, monkeypatch):
    ring(x=torch.ones(6, 2)).save(tmp_path / "d")
    events = []
    fsync, replace, unlink = os.fsync, os.replace, io.Path.unlink
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append("fsync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    monkeypatch.setattr(io.Path, "unlink", lambda self, **k: (events.append("unlink"), unlink(self, **k)))
    ring(x=torch.zeros(6, 2)).save(tmp_path / "d")
    assert events[:6] == ["fsync indptr.2.npy", "fsync indices.2.npy", "fsync x.2.npy", "fsync meta.json.new", "rename", "fsync d"]
    assert events[6:] == ["unlink"] * 3


SAVE_IN_A_LOOP = """
import sys, torch, headrace as hr
graph = hr.Graph.from_edges([0, 1], [1, 0])
big = [torch.full((3_000_000,), version, dtype=torch.int32) for version in range(2)]
print("ready", flush=True)
for version in range(1, 1_000_000):
    hr.Dataset(graph, extra={"a": big[version % 2], "b": big[version % 2]}, info={"v": version % 2}).save(sys.argv[1])
"""


def test_a_process_killed_while_saving_leaves_one_complete_version(tmp_path):
    path = tmp_path / "d"
    graph = hr.Graph.from_edges([0, 1], [1, 0])
    start = torch.zeros(3_000_000, dtype=torch.int32)
    hr.Dataset(graph, extra={"a": start, "b": start}, info={"v": 0}).save(path)
    moments = random.Random(0)
    interrupted = 0
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", SAVE_IN_A_LOOP, str(path)], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0.0, 0.25))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        interrupted += len(files_of(path)) != 5
        data = hr.open(path, verify=True)
        version = data.info["v"]
        assert data.extra["a"].eq(version).all()
        assert data.extra["b"].eq(version).all()
        data.graph.validate()
    assert interrupted, "no kill met a save under way: the test shows nothing"
    ring().save(path)
    assert len(files_of(path)) == 3  # what the killed ones left is gone


def test_leftovers_of_an_interrupted_save_are_cleaned_by_the_next(tmp_path):
    path = tmp_path / "d"
    ring(x=torch.ones(6, 2)).save(path)
    (path / "x.7.npy").write_bytes(b"half of an arr")
    (path / "meta.json.new").write_text('{"format"')
    assert hr.open(path, verify=True).x.eq(1).all()
    ring(x=torch.zeros(6, 2)).save(path)
    assert files_of(path) == ["indices.8.npy", "indptr.8.npy", "meta.json", "x.8.npy"]


def test_a_first_save_that_was_killed_is_told_and_can_be_repeated(tmp_path):
    path = tmp_path / "d"
    path.mkdir()
    (path / "x.1.npy").write_bytes(b"half of an arr")
    (path / "meta.json.new").write_text("{")
    with pytest.raises(FileNotFoundError, match="its writing was interrupted"):
        hr.open(path)
    ring().save(path)
    assert files_of(path) == ["indices.2.npy", "indptr.2.npy", "meta.json"]
    assert hr.open(path).num_nodes == 6


def test_a_save_that_gives_up_leaves_nothing_of_one_that_was_killed_before(tmp_path):
    path = tmp_path / "d"
    path.mkdir()
    (path / "x.1.npy").write_bytes(b"half of an arr")
    (path / "meta.json.new").write_text("{")
    with pytest.raises(KeyboardInterrupt), io.DatasetWriter(path) as writer:
        writer.write("indptr", torch.zeros(3))
        raise KeyboardInterrupt
    assert not path.exists()  # and so does not look like files of somebody else
    ring().save(path)
    assert hr.open(path).num_nodes == 6


def test_a_save_for_which_there_is_no_room_leaves_nothing(tmp_path):
    class Full:
        """A file whose last bytes find no room when it is closed."""

        def __init__(self, file):
            self.file = file

        def close(self):
            self.file.close()
            raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="the first error"), io.DatasetWriter(tmp_path / "d") as writer:
        array = writer.array("x", torch.float32, (4, 2))
        array._file = Full(array._file)
        raise ValueError("the first error")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("savers", [1, 2])
def test_a_directory_can_be_opened_at_any_moment_while_others_save_to_it(tmp_path, savers):
    path, ended = tmp_path / "d", FORK.Event()
    numbers = [{"extra": {n: torch.full((50,), v) for n in "abcdef"}, "info": {"v": v}} for v in range(savers)]
    ring(**numbers[0]).save(path)

    def save(version):
        saves = 0
        while not ended.is_set():
            ring(**numbers[version]).save(path)
            saves += 1
        return saves

    children = [Child(lambda version=version: save(version)) for version in range(savers)]
    deadline, opens = time.monotonic() + 1.5, 0
    try:
        while time.monotonic() < deadline:
            data = hr.open(path, verify=opens % 4 == 0)
            assert all(array.eq(data.info["v"]).all() for array in data.extra.values())
            opens += 1
    finally:
        ended.set()
        saves = [child.result() for child in children]
    assert opens > 20
    assert min(saves) > 5
    assert len(files_of(path)) == 9  # nothing of an older version, no lock


def test_a_writer_waits_for_another_one_and_then_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "_PATIENCE", 0.05)
    told = rf"d is being written by process {os.getpid()} on .*: wait until"
    with io.DatasetWriter(tmp_path / "d"), pytest.raises(BlockingIOError, match=told):
        ring().save(tmp_path / "d")
    ring().save(tmp_path / "d")


# ---- other people's files


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds other files and is not a dataset"):
        ring().save(tmp_path)
    assert files_of(tmp_path) == ["thesis.tex"]


def test_a_file_is_refused(tmp_path):
    (tmp_path / "d").write_text("a file")
    with pytest.raises(FileExistsError, match="is a file: a dataset is a directory"):
        ring().save(tmp_path / "d")
    assert (tmp_path / "d").read_text() == "a file"


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "d").mkdir()
    ring().save(tmp_path / "d")
    assert hr.open(tmp_path / "d").num_nodes == 6


def test_files_beside_a_dataset_are_left_alone(tmp_path):
    ring().save(tmp_path / "d")
    (tmp_path / "d" / "notes.txt").write_text("keep")
    ring().save(tmp_path / "d")
    assert (tmp_path / "d" / "notes.txt").read_text() == "keep"


def test_numbered_arrays_of_the_user_are_not_deleted(tmp_path):
    np.save(tmp_path / "measurements.1.npy", np.arange(3))
    np.save(tmp_path / "measurements.2.npy", np.arange(3))
    with pytest.raises(FileExistsError):
        ring().save(tmp_path)
    assert files_of(tmp_path) == ["measurements.1.npy", "measurements.2.npy"]


def test_the_meta_json_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "meta.json").write_text('{"tool": "another"}')
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError):
        ring().save(tmp_path)
    assert (tmp_path / "meta.json").read_text() == '{"tool": "another"}'


# ---- damage


@pytest.fixture
def saved(tmp_path):
    ring(x=torch.arange(12.0).view(6, 2)).save(tmp_path / "d")
    return tmp_path / "d"


def change_meta(path, change):
    meta = json.loads((path / "meta.json").read_text())
    del meta["crc32"]  # of the file as it was written: without it, what is said must make sense
    change(meta)
    (path / "meta.json").write_text(json.dumps(meta))


def test_verify_finds_a_flipped_bit_anywhere_in_the_data(saved):
    file = saved / "x.1.npy"
    good = file.read_bytes()
    for at in range(len(good) - 48, len(good)):
        for bit in (0, 7):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            file.write_bytes(bad)
            with pytest.raises(ValueError, match=r"x\.1\.npy is damaged"):
                hr.open(saved, verify=True)
    file.write_bytes(good)
    assert hr.open(saved, verify=True).x[5, 1] == 11


def test_a_flipped_bit_in_a_header_is_found_or_harmless(saved):
    file = saved / "x.1.npy"
    good = file.read_bytes()
    found = 0
    for at in range(len(good) - 48):
        for bit in (0, 1, 5):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            file.write_bytes(bad)
            try:
                data = hr.open(saved, verify=True)
            except ValueError:
                found += 1
            else:
                assert data.x.tolist() == torch.arange(12.0).view(6, 2).tolist()
    assert found > 50


@pytest.mark.parametrize(
    ("keep", "verify"),
    [
        (0, False),
        (0, True),
        (3, False),
        (3, True),
        (40, False),
        (40, True),
        (-48, False),
        (-48, True),
        (-1, False),
        (-1, True),
    ],
)
def test_a_truncated_file_is_named(saved, keep, verify):
    file = saved / "x.1.npy"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"x\.1\.npy is damaged"):
        hr.open(saved, verify=verify)


def test_verify_finds_bytes_too_many(saved):
    with open(saved / "x.1.npy", "ab") as f:
        f.write(b"more")
    with pytest.raises(ValueError, match=r"x\.1\.npy is damaged: its checksum"):
        hr.open(saved, verify=True)


def test_a_missing_file_is_named(saved):
    (saved / "x.1.npy").unlink()
    with pytest.raises(ValueError, match=r"is damaged: x\.1\.npy is missing"):
        hr.open(saved)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": 1}',
        '{"format": 1, "info": {}}',
        "\x00\x01",
    ],
)
def test_damaged_json_is_a_value_error(saved, text):
    (saved / "meta.json").write_text(text)
    with pytest.raises(ValueError, match=r"meta\.json is damaged"):
        hr.open(saved)


def test_json_that_is_no_text_is_a_value_error(saved):
    (saved / "meta.json").write_bytes(b'{"format": "\xff\xfe"}')
    with pytest.raises(ValueError, match=r"meta\.json is damaged"):
        hr.open(saved)


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_another_format_number_is_refused(saved, number):
    change_meta(saved, lambda meta: meta.update(format=number))
    with pytest.raises(ValueError, match=rf"has format {number}; this version of Headrace reads format 1"):
        hr.open(saved)


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [6, 3]},
        {"shape": [12]},
        {"dtype": "float64"},
        {"dtype": "int32"},
        {"file": "../d/x.1.npy"},
        {"file": "/etc/passwd"},
        {"file": "meta.json"},
    ],
    ids=str,
)
def test_meta_json_that_contradicts_a_file_is_refused(saved, entry):
    change_meta(saved, lambda meta: meta["arrays"]["x"].update(entry))
    with pytest.raises(ValueError, match=r"meta\.json"):
        hr.open(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["arrays"]["x"].update(dtype="float33"),
        lambda meta: meta["arrays"]["x"].update(dtype="nn"),
        lambda meta: meta["arrays"]["x"].pop("shape"),
        lambda meta: meta["arrays"]["x"].pop("file"),
        lambda meta: meta["arrays"]["x"].update(file=3),
        lambda meta: meta["arrays"].update(x=7),
        lambda meta: meta.update(arrays=7),
        lambda meta: meta.update(arrays=["x"]),
    ],
    ids=[
        "unknown-type",
        "no-type",
        "no-shape",
        "no-file",
        "number-as-file",
        "number-as-entry",
        "number-as-arrays",
        "list-as-arrays",
    ],
)
def test_a_damaged_entry_of_meta_json_is_a_value_error(saved, change):
    change_meta(saved, change)
    with pytest.raises(ValueError, match="damaged"):
        hr.open(saved)


def test_a_directory_without_a_graph_is_refused(saved):
    change_meta(saved, lambda meta: meta["arrays"].pop("indices"))
    with pytest.raises(ValueError, match=r"holds no graph: it lists \['indptr', 'x'\]"):
        hr.open(saved)


def test_rows_must_fit_the_graph(saved):
    change_meta(saved, lambda meta: meta["arrays"].update(y=meta["arrays"]["indptr"]))
    with pytest.raises(ValueError, match="y has 7 rows for 6 nodes"):
        hr.open(saved)


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no dataset at"):
        hr.open(tmp_path / "nothing")
    (tmp_path / "other.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"is not a dataset: it has no meta\.json"):
        hr.open(tmp_path)


# ---- the dataset in memory


def test_rows_are_checked_against_the_graph():
    with pytest.raises(ValueError, match="x has 5 rows for 6 nodes"):
        ring(x=torch.zeros(5, 2))
    with pytest.raises(ValueError, match="split 'val' masks 5 of 6 nodes"):
        ring(splits={"val": torch.zeros(5, dtype=torch.bool)})


def test_sizes_and_repr():
    data = ring(x=torch.zeros(6, 3), y=torch.tensor([0, 1, 4, 0, 0, 0]), splits={"train": torch.tensor([1, 2])})
    assert (data.num_nodes, data.num_edges, data.num_features, data.num_classes) == (6, 6, 3, 5)
    assert data.nbytes == 7 * 8 + 6 * 4 + 6 * 3 * 4 + 6 * 8 + 2 * 8
    assert repr(data) == "Dataset(num_nodes=6, num_edges=6, num_features=3, num_classes=5, splits=train:2)"
    assert ring(y=torch.zeros(6, 9, dtype=torch.bool)).num_classes == 9
    assert (ring().num_features, ring().num_classes) == (0, 0)
