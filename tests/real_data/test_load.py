"""`hr.load` on the real datasets: every folder loads, with the sizes that the data's README and the papers give."""

import dataclasses

import numpy as np
import pytest
import torch

import headrace as hr


@dataclasses.dataclass(frozen=True)
class Size:
    nodes: int
    edges: int  # both directions of an undirected edge
    features: int = 0
    classes: int = 0
    splits: tuple[int, int, int] | None = None


CLASSIFICATION = {
    "cora": Size(2_708, 2 * 5_278, 1_433, 7, (140, 500, 1_000)),
    "pubmed": Size(19_717, 2 * 44_324, 500, 3, (60, 500, 1_000)),
    "amazon_computers": Size(13_752, 2 * 245_861, 767, 10, (200, 300, 13_252)),
    "coauthor_cs": Size(18_333, 2 * 81_894, 6_805, 15, (300, 450, 17_583)),
    "coauthor_physics": Size(34_493, 2 * 247_962, 8_415, 5, (100, 150, 34_243)),
    "citation_dblp": Size(17_716, 2 * 52_867, 1_639, 4, (80, 120, 17_516)),
    "blogcatalog_attr": Size(5_196, 2 * 171_743, 8_189, 6, (120, 180, 4_896)),
    "tolokers": Size(11_758, 2 * 519_000, 10, 2, (5_879, 2_939, 2_940)),
    "minesweeper": Size(10_000, 2 * 39_402, 7, 2, (5_000, 2_500, 2_500)),
    "squirrel_filtered": Size(2_223, 2 * 46_998, 2_089, 5),
    "actor": Size(7_600, 2 * 26_659, 932, 5, (3_648, 2_432, 1_520)),
    "fb100_cornell5": Size(18_660, 2 * 790_777, 0, 2),
}
MULTI_LABEL = {
    "blogcatalog_multilabel": Size(10_312, 2 * 333_983, 0, 39),
    "flickr_multilabel": Size(80_513, 2 * 5_899_882, 0, 195),
    "wikipedia_pos_multilabel": Size(4_777, 2 * 92_295, 0, 40),
}
OTHERS = {
    "web_google": Size(875_713, 5_105_039),
    "dblp_four_area": Size(14_376 + 14_475 + 20 + 8_920, 2 * (41_794 + 14_376 + 114_624)),
    "gowalla": Size(29_858 + 40_981, 2 * 810_128),
    "fb15k237": Size(14_541, 272_115),
    "fb15k": Size(14_951, 483_142),
    "codex_m": Size(17_050, 185_584),
    "nations": Size(14, 1_592),
    "kinships": Size(104, 8_544),
    "umls": Size(135, 5_216),
    "icews14": Size(7_128, 63_685),
    "jodie_wikipedia": Size(8_227 + 1_000, 157_474),
    "enron": Size(184, 125_235),
    "bitcoin_otc": Size(5_881, 35_592),
    "twitter_tennis_rg17": Size(1_000, 40_839),
    "england_covid": Size(129, 82_529),
    "chickenpox_hungary": Size(20, 102),
    "los_loop": Size(207, 2_833),
}


def test_every_folder_is_listed_here(data_root):
    there = {f.parent.name for f in data_root.glob("*/*.npz")}
    assert there == CLASSIFICATION.keys() | MULTI_LABEL.keys() | OTHERS.keys()


def is_symmetric(graph):
    reverse = graph.reverse()

    def keys(g):
        source, target = g.edge_index()
        return (target * g.num_nodes + source).sort().values

    return torch.equal(keys(graph), keys(reverse))


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_node_classification(data_root, name):
    size, data = CLASSIFICATION[name], hr.load(name, data_root)
    assert (data.num_nodes, data.num_edges) == (size.nodes, size.edges)
    assert (data.num_features, data.num_classes) == (size.features, size.classes)
    assert data.info["name"] == name
    data.graph.validate()
    source, target = data.graph.edge_index()
    assert not (source == target).any()
    assert len((source * size.nodes + target).unique()) == size.edges
    assert is_symmetric(data.graph)
    assert data.y.dtype == torch.int64
    assert set(data.y.unique().tolist()) - {-1} == set(range(size.classes))
    if size.features:
        assert data.x.dtype == torch.float32
        assert data.x.sum().isfinite()
        assert data.x[:100].any()
    splits = [data.splits[s] for s in ("train", "val", "test")]
    together = torch.cat(splits)
    assert len(together.unique()) == len(together)
    assert (data.y[together] >= 0).all()
    if size.splits is not None:
        assert tuple(len(s) for s in splits) == size.splits


@pytest.mark.parametrize("name", MULTI_LABEL)
def test_multi_label(data_root, name):
    size, data = MULTI_LABEL[name], hr.load(name, data_root)
    assert (data.num_nodes, data.num_edges, data.num_classes) == (size.nodes, size.edges, size.classes)
    assert data.x is None
    assert data.y.shape == (size.nodes, size.classes)
    assert data.y.dtype == torch.bool
    data.graph.validate()
    if data.num_edges < 1_000_000:
        assert is_symmetric(data.graph)
    with np.load(data_root / name / f"{name}.npz") as raw:
        assert int(data.y.sum()) == len(raw["y_indices"])
        node = int(np.argmax(np.diff(raw["y_indptr"])))
        expected = raw["y_indices"][raw["y_indptr"][node] : raw["y_indptr"][node + 1]]
        assert data.y[node].nonzero().flatten().tolist() == sorted(expected.tolist())


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_of_data(data_root, name):
    size, data = OTHERS[name], hr.load(name, data_root)
    assert (data.num_nodes, data.num_edges) == (size.nodes, size.edges)
    data.graph.validate()


def test_cora_is_the_public_split(data_root):
    cora = hr.load("cora", data_root)
    assert {name: len(ids) for name, ids in cora.splits.items()} == {"train": 140, "val": 500, "test": 1_000}
    assert torch.equal(cora.splits["train"], torch.arange(140))
    assert torch.equal(cora.splits["val"], torch.arange(140, 640))
    assert torch.equal(cora.splits["test"], torch.arange(1_708, 2_708))
    assert cora.y[:140].bincount().tolist() == [20] * 7
    assert cora.y.bincount().tolist() == [351, 217, 418, 818, 426, 298, 180]
    assert set(cora.x.unique().tolist()) == {0, 1}
    assert int(cora.x.sum()) == 49_216


def test_sparse_features_are_the_packed_ones(data_root):
    pubmed = hr.load("pubmed", data_root)
    with np.load(data_root / "pubmed" / "pubmed.npz") as raw:
        if "x" in raw:
            np.testing.assert_array_equal(pubmed.x, raw["x"].astype(np.float32))
        else:
            node = 1_234
            at = slice(raw["x_indptr"][node], raw["x_indptr"][node + 1])
            row = np.zeros(500, np.float32)
            row[raw["x_indices"][at]] = raw["x_values"][at]
            np.testing.assert_array_equal(pubmed.x[node], row)
            assert int((pubmed.x != 0).sum()) == np.count_nonzero(raw["x_values"])


def test_the_first_of_several_splits_is_taken_and_all_are_kept(data_root):
    data = hr.load("actor", data_root)
    assert data.extra["train_masks"].shape == (10, 7_600)
    for split in ("train", "val", "test"):
        assert torch.equal(data.splits[split], data.extra[f"{split}_masks"][0].nonzero().flatten())


def test_unlabeled_nodes_stand_in_no_split(data_root):
    data = hr.load("fb100_cornell5", data_root)
    assert int((data.y == -1).sum()) == 1_838
    assert data.extra["meta"].shape == (18_660, 7)
    assert sum(len(s) for s in data.splits.values()) == 18_660 - 1_838


def test_edges_point_the_way_the_file_says(data_root):
    data = hr.load("web_google", data_root)
    with np.load(data_root / "web_google" / "web_google.npz") as raw:
        source, target = raw["edge_index"][:, 1_000]
    assert int(source) in data.graph.neighbors(int(target)).tolist()


def test_knowledge_graph_edges_are_the_training_triples(data_root):
    data = hr.load("umls", data_root)
    assert [len(data.extra[s]) for s in ("train", "valid", "test")] == [5_216, 652, 661]
    source, target = data.graph.edge_index()
    triples = data.extra["train"][data.graph.edge_id.long()]
    assert torch.equal(triples[:, 0].long(), source)
    assert torch.equal(triples[:, 2].long(), target)
    assert data.info["num_relations"] == 46


def test_events_keep_their_times(data_root):
    data = hr.load("enron", data_root)
    assert len(data.extra["ts"]) == data.num_edges
    assert (data.extra["ts"].diff() >= 0).all()
    assert torch.equal(data.extra["src"][data.graph.edge_id.long()].long(), data.graph.edge_index()[0])
    assert torch.equal(data.extra["ts"][data.graph.edge_id.long()], data.graph.time)
    stream = hr.EventStream.of(data)
    assert (len(stream), stream.num_nodes, stream.splits()) == (125_235, 184, (87_664, 106_450, 125_235))


def test_users_and_items_are_numbered_apart(data_root):
    data = hr.load("gowalla", data_root)
    users = data.info["num_users"]
    assert users == 29_858
    source, target = data.graph.edge_index()
    assert ((source < users) != (target < users)).all()


def test_the_environment_names_the_folder(data_root, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    assert hr.load("nations").num_nodes == 14


def test_an_explicit_root_goes_before_the_environment(data_root, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    assert hr.load("nations", root=str(data_root)).num_nodes == 14


def test_without_a_folder_the_error_says_how_to_give_one(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"there is no 'not_anywhere' in a folder `data` here or above: set HEADRACE_DATA"):
        hr.load("not_anywhere")  # a folder above the temporary one may have real datasets


def test_the_nearest_folder_above_is_found(monkeypatch, tmp_path, data_root):
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "data").symlink_to(data_root)
    (tmp_path / "project" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "deep")
    assert hr.load("cora").num_nodes == 2708


def test_an_unknown_name_lists_what_is_there(data_root):
    with pytest.raises(
        FileNotFoundError, match=r"there is no dataset 'coral' in .*: it has actor, amazon_computers, .*cora, .*pubmed"
    ):
        hr.load("coral", data_root)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no dataset 'cora' in .*nowhere$"):
        hr.load("cora", tmp_path / "nowhere")


def test_unknown_arrays_are_named(tmp_path):
    (tmp_path / "odd").mkdir()
    np.savez(tmp_path / "odd" / "odd.npz", apples=np.zeros(3), pears=np.zeros(2))
    with pytest.raises(ValueError, match="no dataset that is known: apples, pears"):
        hr.load("odd", tmp_path)


def test_a_loaded_dataset_can_be_saved_and_opened(data_root, tmp_path):
    data = hr.load("cora", data_root)
    data.save(tmp_path / "cora")
    opened = hr.open(tmp_path / "cora", verify=True)
    assert opened.info == data.info
    assert torch.equal(opened.x, data.x)
    assert torch.equal(opened.graph.indices, data.graph.indices)
    assert opened.num_classes == 7
