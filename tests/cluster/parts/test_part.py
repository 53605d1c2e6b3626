"""`Part.open`: from the partition or from the part's directory alone, with errors that name what is wrong."""

import json
import shutil

import pytest
import torch

import headrace as hr
from headrace._sealed import write_sealed
from headrace.cluster import Part, is_partition, partition
from headrace.graph.known.named import named
from headrace.store import ColumnSlice, Remote
from headrace.store.disk.mapped import mapped_place
from part_cases import cases

DATA = cases()["all of an edge"]
DATA.splits["train"] = torch.tensor([39, 3, 17])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "parts"
    partition(DATA, path, parts=4, by="ldg")
    return path


@pytest.fixture
def path(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "parts")
    return tmp_path / "parts"


def rewritten(file, **changes):
    content = json.loads(file.read_text())
    del content["crc32"]
    for name, value in changes.items():
        (content["info"] if name in content["info"] else content)[name] = value
    write_sealed(file, content)


def test_a_part_says_what_it_has(whole):
    part = Part.open(whole, 2)
    assert (part.number, part.parts, part.by, part.columns) == (2, 4, "ldg", None)
    assert (part.num_nodes, part.num_edges, part.num_features, part.num_classes) == (40, 160, 7, 5)
    assert part.split_sizes == {"train": 3}
    assert part.owners.ids_of(2).equal(part.ids)
    assert part.x.equal(DATA.x[part.ids])
    for row, node in enumerate(part.ids.tolist()):
        here, there = slice(*part.indptr[row : row + 2].tolist()), slice(*DATA.graph.indptr[node : node + 2].tolist())
        assert part.indices[here].equal(DATA.graph.indices[there])
        assert part.edge_id[here].equal(DATA.graph.edge_id[there])
    nodes, edges = len(part.ids), len(part.indices)
    assert repr(part) == f"Part(2 of 4 by ldg, nodes={nodes}, edges={edges}, x=[{nodes}, 7], num_nodes=40, num_edges=160)"
    with pytest.raises(AttributeError):
        part.number = 1


def test_splits_are_global_ids_in_the_order_of_the_whole(whole):
    parts = [Part.open(whole, number) for number in range(4)]
    for part in parts:
        own = set(part.ids.tolist())
        assert part.splits["train"].tolist() == [node for node in (39, 3, 17) if node in own]
        assert DATA.splits["train"][part.places["train"]].equal(part.splits["train"])


def test_nothing_is_read_until_it_is_used(whole):
    part = Part.open(whole, 0)
    for tensor in (part.indptr, part.indices, part.weight, part.time, part.edge_id, part.x, part.y):
        assert mapped_place(tensor).path.parent == whole / "part-0"


def test_a_part_opens_where_it_is_alone(whole, tmp_path):
    shutil.copytree(whole / "part-2", tmp_path / "mine")
    alone, there = Part.open(tmp_path / "mine", verify=True), Part.open(whole, 2)
    assert Part.open(tmp_path / "mine", 2).number == alone.number == 2
    assert alone.owners.fingerprint == there.owners.fingerprint
    assert alone.x.equal(there.x)
    assert alone.ids.equal(there.ids)
    assert (alone.info, alone.fingerprint) == (there.info, there.fingerprint)
    assert is_partition(tmp_path / "mine")
    with pytest.raises(ValueError, match="mine holds part 2, not part 1: open the directory of that one"):
        Part.open(tmp_path / "mine", 1)


def test_stores_take_a_part_as_it_is(tmp_path):
    partition(DATA, tmp_path / "columns", parts=3, columns=True)
    part = Part.open(tmp_path / "columns", 1)
    store = ColumnSlice.of(part.x, part.columns[0], of=part.num_features)
    assert store.gather(torch.tensor([39, 0])).equal(DATA.x[[39, 0], slice(*part.columns)])
    assert hasattr(Remote, "from_local")  # which takes part.x and part.owners, on the ranks of a group


def test_the_number_is_checked(path):
    with pytest.raises(ValueError, match="parts is a partition into 4 parts: say which one to open, 0 to 3"):
        Part.open(path)
    for number in (-1, 4):
        with pytest.raises(ValueError, match=rf"there is no part {number} in .*parts: it has parts 0 to 3"):
            Part.open(path, number)


def test_a_missing_part_is_named(path):
    shutil.rmtree(path / "part-1")
    with pytest.raises(FileNotFoundError, match=r"part-1 is missing: copy it from where the dataset was partitioned"):
        Part.open(path, 1)
    assert Part.open(path, 0).number == 0


def test_parts_that_were_exchanged_are_noticed(path, tmp_path):
    (path / "part-1").rename(path / "aside")
    (path / "part-0").rename(path / "part-1")
    with pytest.raises(ValueError, match="part-1 holds part 0, not part 1"):
        Part.open(path, 1)
    partition(DATA, tmp_path / "other", parts=4, by="hash")
    shutil.copytree(tmp_path / "other" / "part-0", path / "part-0")
    with pytest.raises(ValueError, match=r"part-0 is a part of another partition than .*parts: copy part 0"):
        Part.open(path, 0)


@pytest.mark.parametrize("name", ["indices", "x", "y", "owner", "split_train", "indptr"])
def test_a_damaged_file_is_named(path, name):
    file = next((path / "part-3").glob(f"{name}.*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 4
    file.write_bytes(content)
    for verify in (True, "small"):
        with pytest.raises(
            ValueError, match=rf"{file.name} is damaged: its checksum is not the one in meta.json; restore the part"
        ):
            Part.open(path, 3, verify=verify)
    file.write_bytes(content[:-9])
    with pytest.raises(ValueError, match=f"{file.name} is damaged"):
        Part.open(path, 3)
    file.unlink()
    with pytest.raises(ValueError, match=f"part-3 is damaged: {file.name} is missing"):
        Part.open(path, 3)


@pytest.mark.parametrize("name", ["partition.json", "part-0/meta.json"])
def test_a_damaged_list_is_named(path, name):
    text = (path / name).read_text()
    (path / name).write_text(text.replace('"num_nodes": 40', '"num_nodes": 41'))
    with pytest.raises(ValueError, match=rf"{name.split('/')[-1]} is damaged: its checksum is wrong"):
        Part.open(path, 0)
    (path / name).write_text(text[:100])
    with pytest.raises((ValueError, OSError), match=r"is damaged|is not a partition"):
        Part.open(path, 0)


def test_a_newer_format_is_told(path):
    rewritten(path / "part-0" / "meta.json", format=2)
    with pytest.raises(ValueError, match="part-0 has format 2; this version of Headrace reads format 1"):
        Part.open(path, 0)
    rewritten(path / "partition.json", format=3)
    with pytest.raises(ValueError, match="parts has format 3; this version of Headrace reads format 1"):
        Part.open(path, 1)


def test_a_part_that_says_too_little_is_told(path, whole):
    for changes, told in (
        ({"whole": {}}, "'parts' is missing"),
        ({"whole": {"parts": 4, "num_nodes": 40, "owners": {"kind": "map"}}}, "it names owners by 'map'"),
        ({"number": "two"}, "is damaged"),
        ({"number": 77}, "is damaged"),
    ):
        rewritten(path / "part-0" / "meta.json", **changes)
        with pytest.raises(ValueError, match=told):
            Part.open(path / "part-0")
        shutil.copy(whole / "part-0" / "meta.json", path / "part-0" / "meta.json")


def test_what_is_no_partition_is_told(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no partition at"):
        Part.open(tmp_path / "nothing", 0)
    DATA.save(tmp_path / "data")
    with pytest.raises(ValueError, match=r"data is a dataset, not a partition: headrace.open\('.*data'\) opens it"):
        Part.open(tmp_path / "data", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty is not a partition: it has no partition\.json"):
        Part.open(tmp_path / "empty", 0)
    places = (path, path / "part-0", tmp_path / "data", tmp_path / "empty", tmp_path / "nothing", path / "partition.json")
    assert [is_partition(place) for place in places] == [True, True, False, False, False, False]
    assert not is_partition("generate:community,nodes=10")
    assert not is_partition("a" * 5000)


def test_a_partition_is_not_opened_as_a_dataset(path, monkeypatch):
    for opens in (hr.open, lambda place: hr.load(place), lambda place: named(str(place))):
        with pytest.raises(
            ValueError, match=r"parts is a partition, not .* dataset: one rank for each of its parts trains, torchrun"
        ):
            opens(path)
        with pytest.raises(ValueError, match=r"part-1 is a part, not .* dataset: .*headrace\.cluster\.Part\.open\('.*part-1'\)"):
            opens(path / "part-1")
    monkeypatch.chdir(path.parent)
    with pytest.raises(ValueError, match="parts is a partition, not the name of a dataset"):
        hr.load("parts")
