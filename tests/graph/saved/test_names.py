"""Names of nodes and relations, from texts and tables, in pieces."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace as hr
from headrace.graph.saved.names import NameReader, Names


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr("headrace.graph.saved.names._PIECE", 4)


def text(path, names, ending="\n"):
    path.write_bytes(ending.join(names).encode() + ending.encode())
    return path


def table(path, ids, nodes=None):
    pq.write_table(pa.table({"node": np.arange(len(ids)) if nodes is None else nodes, "id": ids}), path)
    return path


def all_of(names):
    return [name for piece in names.pieces() for name in piece.to_pylist()]


WORDS = ["a", "b b", "", "ç", "e", "b b", "g", "h", "i"]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_texts_have_a_name_per_line(tmp_path, ending):
    assert all_of(Names(text(tmp_path / "names.txt", WORDS, ending), len(WORDS))) == WORDS


def test_compressed_texts_are_read_too(tmp_path):
    with gzip.open(tmp_path / "names.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(WORDS))  # without a last line end
    assert all_of(Names(tmp_path / "names.txt.gz", len(WORDS))) == WORDS


def test_tables_in_any_order_are_read_by_node(tmp_path):
    nodes = np.array([0, 1, 2, 3, 8, 7, 6, 5, 4])
    shuffled = table(tmp_path / "ids.parquet", [WORDS[n] for n in nodes], nodes)
    assert all_of(Names(shuffled, len(WORDS))) == WORDS
    with pytest.raises(ValueError, match="once"):
        all_of(Names(table(tmp_path / "twice.parquet", ["a", "b"], [0, 0]), 2))


def test_names_are_found_and_looked_up(tmp_path):
    names = Names(text(tmp_path / "names.txt", WORDS), len(WORDS))
    assert names.find("b b") == [1, 5]
    assert names.find("B B") == []
    assert names.like("B", most=1) == ["b b"]
    assert names.of([8, 0, 8]) == ["i", "a", "i"]
    assert names.of([]) == []
    with pytest.raises(IndexError, match="not for 9"):
        names.of([9])


def test_integers_are_found_by_value(tmp_path):
    names = Names(table(tmp_path / "ids.parquet", [10, -7, 1000]), 3)
    assert names.find("-7") == [1]
    assert names.find("seven") == []
    assert names.like("1") == []
    assert names.of([2]) == [1000]


@pytest.mark.parametrize("count", [8, 10])
def test_a_wrong_number_of_names_is_an_error(tmp_path, count):
    with pytest.raises(ValueError, match="another dataset"):
        all_of(Names(text(tmp_path / "names.txt", WORDS), count))


def test_pieces_of_any_size(tmp_path):
    reader = NameReader(Names(text(tmp_path / "names.txt", WORDS), len(WORDS)))
    assert [reader.take(n).to_pylist() for n in (0, 1, 5, 0, 3)] == [[], ["a"], WORDS[1:6], [], WORDS[6:]]


def test_names_follow_their_nodes_through_save_and_reorder(tmp_path):
    graph = hr.Graph.from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), 4)
    files = {"nodes": text(tmp_path / "n.txt", ["a", "b", "c", "d"]), "relations": text(tmp_path / "r.txt", ["x"])}
    data = hr.Dataset(graph, names=files)
    moved = data.reorder(torch.tensor([3, 1, 0, 2])).reorder(torch.tensor([1, 0, 2, 3]))
    assert all_of(Names.of_nodes(moved)) == ["b", "d", "a", "c"]
    moved.save(tmp_path / "saved")
    again = hr.open(tmp_path / "saved", verify=True)
    assert all_of(Names.of_nodes(again)) == ["b", "d", "a", "c"]
    assert all_of(Names.of_relations(again, 1)) == ["x"]
    assert Names.of_nodes(hr.Dataset(graph)) is None
    assert Names.of_relations(hr.Dataset(graph), 1) is None


def test_known_datasets_bring_their_names(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    triples = np.array([[0, 0, 1], [1, 0, 2]], np.int32)
    np.savez(folder / "people.npz", train=triples, valid=triples, test=triples, num_entities=3, num_relations=1)
    with gzip.open(folder / "entities.txt.gz", "wt") as file:
        file.write("x\ny\nz\n")
    data = hr.load("people", root=tmp_path)
    assert all_of(Names.of_nodes(data)) == ["x", "y", "z"]
    assert Names.of_relations(data, 1) is None
