"""What a run trained, as files and as neighbors: against rows that are all in memory."""

import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace as hr
from headrace.graph.saved.names import Names
from headrace.train import LinkOptions, Run
from headrace.train.inference.trained_links import open_links

NODES, RELATIONS = 60, 3
QUICK = {"dim": 6, "epochs": 2, "batch_size": 40, "negatives": 10, "chunks": 2, "threads": 1, "init": 0.5}
DISK = {"storage": "disk", "partitions": 4, "buffer": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small knowledge graph with names, of which one has a space and one is no ASCII."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "nodes.txt").write_text("\n".join(["Ada Lovelace", "Zoë", *(f"person {i}" for i in range(2, NODES))]) + "\n")
    (folder / "relations.txt").write_text("knows\nlikes\n7\n")
    head, relation = torch.arange(NODES).repeat(RELATIONS), torch.arange(RELATIONS).repeat_interleave(NODES)
    triples = torch.stack([head, relation, (head + relation + 1) % NODES], dim=1)
    graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], NODES)
    names = {"nodes": folder / "nodes.txt", "relations": folder / "relations.txt"}
    splits = {"train": triples[:170], "valid": triples[170:], "test": triples[170:]}
    return hr.Dataset(graph, extra=splits, info={"num_relations": RELATIONS}, names=names)


@pytest.fixture(scope="module")
def run_of(data, tmp_path_factory):
    """A finished run with these options, made once; its rows and relations as training returned them."""
    made = {}

    def run(**options):
        key = tuple(sorted(options.items()))
        if key not in made:
            path = tmp_path_factory.mktemp("runs") / "run"
            result = hr.train.link(data, LinkOptions(**{**QUICK, **options}), out=path)
            if result.rows is not None:
                rows = result.rows.rows.float().clone()
            else:
                with hr.store.Partitioned.open(path / "rows", capacity=1) as store:
                    rows = torch.cat([piece for _, piece in store.scan()])
            made[key] = path, rows, result.decoder
        return made[key]

    return run


CASES = [{}, {"reciprocal": True}, {"row_type": "bf16"}, DISK, {**DISK, "decoder": "dot"}]


@pytest.mark.parametrize("options", CASES)
def test_parquet_has_every_row_and_its_name(data, run_of, tmp_path, options):
    path, rows, decoder = run_of(**options)
    told = []
    found = hr.train.export(path, tmp_path / "e.parquet", data=data, progress=lambda *at: told.append(at))
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.column_names == ["node", "id", "embedding"]
    assert table["node"].to_pylist() == list(range(NODES))
    assert table["id"].to_pylist()[:3] == ["Ada Lovelace", "Zoë", "person 2"]
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), rows.numpy())
    assert told[-1] == (NODES, NODES)
    assert found.files[0] == tmp_path / "e.parquet"
    if decoder.name == "dot":
        assert not (tmp_path / "e.relations.parquet").exists()
        return
    relations = pq.read_table(tmp_path / "e.relations.parquet")
    assert relations["id"].to_pylist() == ["knows", "likes", "7"] * (2 if decoder.reciprocal else 1)
    assert relations["relation"].to_pylist() == [0, 1, 2] * (2 if decoder.reciprocal else 1)
    assert relations["reciprocal"].to_pylist() == [False] * 3 + [True] * 3 * decoder.reciprocal
    assert np.array_equal(np.stack(relations["parameters"].to_numpy()), decoder.relation.detach().numpy())


@pytest.mark.parametrize("options", CASES)
def test_npy_has_every_row_and_names_beside(data, run_of, tmp_path, options):
    path, rows, decoder = run_of(**options)
    found = hr.train.export(path, tmp_path / "e.npy", format="npy", data=data)
    loaded = np.load(tmp_path / "e.npy", mmap_mode="r")
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, rows.numpy())
    assert (tmp_path / "e.names.txt").read_text().splitlines()[1] == "Zoë"
    if decoder.relation.numel():
        assert np.array_equal(np.load(tmp_path / "e.relations.npy"), decoder.relation.detach().numpy())
    assert sorted(tmp_path.iterdir()) == sorted(found.files)


def test_without_names_there_is_no_column_of_them(run_of, tmp_path):
    path, _, _ = run_of()
    assert not hr.train.export(path, tmp_path / "e.parquet").named
    assert pq.read_table(tmp_path / "e.parquet").column_names == ["node", "embedding"]
    hr.train.export(path, tmp_path / "e.npy", format="npy")
    assert not (tmp_path / "e.names.txt").exists()


def test_small_pieces_make_the_same_file(data, run_of, tmp_path, monkeypatch):
    path, rows, _ = run_of()
    monkeypatch.setattr(sys.modules["headrace.train.inference.export"], "_PIECE_BYTES", 7 * 4 * 6)
    monkeypatch.setattr("headrace.graph.saved.names._PIECE", 11)
    hr.train.export(path, tmp_path / "e.parquet", data=data)
    table = pq.read_table(tmp_path / "e.parquet")
    assert pq.ParquetFile(tmp_path / "e.parquet").num_row_groups == -(-NODES // 7)
    assert table["id"].to_pylist()[-1] == f"person {NODES - 1}"
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), rows.numpy())


@pytest.mark.parametrize("format", ["parquet", "npy"])
def test_an_interrupted_export_leaves_nothing(data, run_of, tmp_path, format):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hr.train.export(run_of()[0], tmp_path / f"e.{format}", format=format, data=data, progress=stop)
    assert not list(tmp_path.iterdir())
    hr.train.export(run_of()[0], tmp_path / f"e.{format}", format=format, data=data)


def test_what_exists_is_not_overwritten(run_of, tmp_path):
    for name in ("e.parquet", "e.relations.parquet"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError, match=f"{name} exists"):
            hr.train.export(run_of()[0], tmp_path / "e.parquet")
        assert [f.name for f in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_an_export_that_was_killed_between_its_files_can_be_repeated(run_of, tmp_path):
    wanted = hr.train.export(run_of()[0], tmp_path / "e.parquet")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(before) == 2
    for _ in range(2):
        (tmp_path / "e.parquet").rename(tmp_path / "e.parquet.new")  # the relations were in place, the rows were not
        assert hr.train.export(run_of()[0], tmp_path / "e.parquet") == wanted
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_export_that_is_interrupted_between_its_files_takes_them_back(run_of, tmp_path, monkeypatch):
    placed = []

    def put_in_place(aside, place):
        if placed:
            raise KeyboardInterrupt
        placed.append(aside.rename(place))

    monkeypatch.setattr("headrace.train.inference.export.put_in_place", put_in_place)
    with pytest.raises(KeyboardInterrupt):
        hr.train.export(run_of()[0], tmp_path / "e.parquet")
    assert placed == [tmp_path / "e.relations.parquet"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_of_link_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run"):
        hr.train.export(tmp_path, tmp_path / "e.parquet")
    Run.create(tmp_path / "node", {"task": "node"})
    with pytest.raises(ValueError, match="task node"):
        hr.train.export(tmp_path / "node", tmp_path / "e.parquet")


class Killed(hr.train.Watcher):
    def epoch(self, line):
        raise KeyboardInterrupt  # no checkpoint is written


class Interrupted(hr.train.Watcher):
    def epoch(self, line):
        signal.raise_signal(signal.SIGINT)  # Ctrl-C: the run writes a checkpoint and stops


@pytest.mark.parametrize("stop", [Killed, Interrupted])
@pytest.mark.parametrize("storage", [{}, DISK], ids=["memory", "disk"])
def test_unfinished_runs_are_refused_until_they_are_done(data, tmp_path, stop, storage):
    options, path = LinkOptions(**{**QUICK, **storage}), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        hr.train.link(data, options, out=path, watcher=stop(), spec="people")
    with pytest.raises(ValueError, match=r"has not finished: go on with it .*train link people"):
        hr.train.export(path, tmp_path / "e.parquet")
    with pytest.raises(ValueError, match="has not finished"):
        hr.train.neighbors(path, 0)
    hr.train.link(data, options, out=path, resume=True)
    hr.train.export(path, tmp_path / "e.parquet")


@pytest.mark.parametrize("storage", [{}, DISK], ids=["memory", "disk"])
def test_damaged_runs_are_refused(data, tmp_path, storage):
    path = tmp_path / "run"
    hr.train.link(data, LinkOptions(**{**QUICK, **storage}), out=path)
    file = next((path / "rows").glob("partition.0.*")) if storage else path / "checkpoints" / "last.pt"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises((ValueError, hr.train.CheckpointError), match="damaged"):
        hr.train.export(path, tmp_path / "e.parquet")
    assert [f.name for f in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("out", "options", "error", "message"),
    [
        ("e.csv", {"format": "csv"}, ValueError, "parquet or npy"),
        ("e.npy", {"format": "parquet"}, ValueError, "ends in .npy"),
        ("there/e.npy", {"format": "npy"}, FileNotFoundError, "no directory"),
    ],
)
def test_wrong_arguments(run_of, tmp_path, out, options, error, message):
    with pytest.raises(error, match=message):
        hr.train.export(run_of()[0], tmp_path / out, **options)


def test_another_dataset_cannot_name_the_rows(run_of, tmp_path):
    other = hr.generate.community(nodes=30, edges=90, classes=2, features=2)
    with pytest.raises(ValueError, match="30 nodes"):
        hr.train.export(run_of()[0], tmp_path / "e.parquet", data=other)


def test_names_of_several_lines_go_to_parquet_only(data, run_of, tmp_path):
    ids = pa.table({"node": np.arange(NODES), "id": ["two\nlines"] * NODES})
    pq.write_table(ids, tmp_path / "ids.parquet")
    named = hr.Dataset(data.graph, id_map=tmp_path / "ids.parquet")
    with pytest.raises(ValueError, match="use format parquet"):
        hr.train.export(run_of()[0], tmp_path / "e.npy", format="npy", data=named)
    assert [f.name for f in tmp_path.iterdir()] == ["ids.parquet"]
    hr.train.export(run_of()[0], tmp_path / "e.parquet", data=named)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_rows_in_memory_are_mapped_not_read(run_of):
    path = run_of()[0]
    with open_links(path) as found:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        assert any(begin <= found.rows.rows.data_ptr() < end for begin, end in ranges)


def best(scores, k, without=()):
    order = sorted((i for i in range(len(scores)) if i not in without), key=lambda i: (-float(scores[i]), i))
    return order[:k]


@pytest.mark.parametrize("decoder", ["complex", "distmult", "transe", "rotate"])
@pytest.mark.parametrize("storage", [{}, DISK], ids=["memory", "disk"])
@pytest.mark.parametrize("reciprocal", [False, True])
def test_neighbors_are_those_of_the_whole_table(data, run_of, decoder, storage, reciprocal):
    path, rows, model = run_of(decoder=decoder, reciprocal=reciprocal, **storage)
    found = hr.train.neighbors(path, "Zoë", relation="likes", k=5, data=data)
    assert (found.node, found.name, found.relation, found.relation_name) == (1, "Zoë", 1, "likes")
    with torch.no_grad():
        if decoder in ("transe", "rotate"):
            near = model.compare(rows[1].expand_as(rows), rows)
        else:
            near = torch.nn.functional.cosine_similarity(rows[1][None], rows)
        relation = torch.ones(NODES, dtype=torch.int64)
        tails = model.compare(model.query(rows[1].expand_as(rows), relation), rows)
        heads = model.compare(model.query(rows[1].expand_as(rows), relation, side="head"), rows)
    for got, scores, without in ((found.nearest, near, {1}), (found.tails, tails, ()), (found.heads, heads, ())):
        assert [n.node for n in got] == best(scores, 5, without)
        assert [n.score for n in got] == pytest.approx([float(scores[n.node]) for n in got], abs=1e-5)
        assert [n.name for n in got] == Names.of_nodes(data).of(n.node for n in got)


def test_neighbors_by_number_and_more_than_there_are(data, run_of):
    path, _, _ = run_of()
    assert hr.train.neighbors(path, 1).nearest[0].name is None
    everything = hr.train.neighbors(path, "1", k=1000, relation="7", data=data)
    assert len(everything.nearest) == NODES - 1
    assert len(everything.tails) == len(everything.heads) == NODES
    assert everything.relation == 2  # the name 7, not a number out of range
    assert hr.train.neighbors(path, 1, relation=1, data=data).relation_name == "likes"


def test_equal_rows_come_by_their_ids(data, tmp_path):
    """Rows that never change from zero: all scores are alike."""
    options = LinkOptions(**{**QUICK, "init": 0.0, "epochs": 1})
    hr.train.link(data, options, out=tmp_path / "run")
    found = hr.train.neighbors(tmp_path / "run", 3, k=4, relation=0)
    assert [n.node for n in found.nearest] == [0, 1, 2, 4]
    assert [n.node for n in found.tails] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("entity", "relation", "message"),
    [
        ("zoë", None, "did you mean 'Zoë'"),
        ("nobody", None, "there is no entity 'nobody': give a name or a number from 0 to 59"),
        (60, None, "entity 60 is not from 0 to 59"),
        (-1, None, "entity -1 is not"),
        ("60", None, "entity 60 is not"),
        (0, "KNOWS", "did you mean 'knows'"),
        (0, 3, "relation 3 is not from 0 to 2"),
    ],
)
def test_unknown_entities_and_relations(data, run_of, entity, relation, message):
    with pytest.raises(ValueError, match=message):
        hr.train.neighbors(run_of()[0], entity, relation=relation, data=data)


def test_without_names_a_name_is_refused(run_of):
    with pytest.raises(ValueError, match="there are no names"):
        hr.train.neighbors(run_of()[0], "Zoë")
    with pytest.raises(ValueError, match="k must be at least 1"):
        hr.train.neighbors(run_of()[0], 1, k=0)


def test_a_name_of_two_nodes_must_be_told_apart(data, run_of, tmp_path):
    (tmp_path / "nodes.txt").write_text("twin\n" * 2 + "other\n" * (NODES - 2))
    twins = hr.Dataset(data.graph, names={"nodes": tmp_path / "nodes.txt"})
    with pytest.raises(ValueError, match="names 0, 1: give one"):
        hr.train.neighbors(run_of()[0], "twin", data=twins)
