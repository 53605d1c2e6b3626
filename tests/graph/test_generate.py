"""Generated graphs: exact sizes, the structure that was asked for, and the same bits for any number of threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph.generate import PRESETS


def edge_keys(graph):
    src, dst = graph.edge_index()
    return (dst * graph.num_nodes + src).numpy()


def share_within_class(data):
    src, dst = data.graph.edge_index()
    return float((data.y[src] == data.y[dst]).double().mean())


def assert_same_dataset(a, b):
    left, right = a._arrays(), b._arrays()
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.fixture(scope="module")
def medium():
    return hr.generate.community(nodes=20_000, edges=400_000, classes=10, features=32, seed=3)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    nodes=st.integers(2, 300),
    fill=st.floats(0, 0.9),
    classes=st.integers(1, 12),
    features=st.integers(0, 9),
    directed=st.booleans(),
    homophily=st.sampled_from([0.0, 0.3, 0.8]),
    seed=st.integers(0, 2**64 - 1),
)
def test_sizes_are_exact_and_edges_are_proper(nodes, fill, classes, features, directed, homophily, seed):
    classes = min(classes, nodes)
    edges = int(fill * nodes * (nodes - 1) / 2) // 2 * 2 + int(directed and fill > 0 and nodes > 2)
    data = hr.generate.community(nodes, edges, classes, features, homophily, seed=seed, directed=directed)
    assert (data.num_nodes, data.num_edges, data.num_classes) == (nodes, edges, classes)
    assert (data.x is None) if features == 0 else (data.x.shape == (nodes, features))
    assert data.y.shape == (nodes,)
    assert 0 <= int(data.y.min()) <= int(data.y.max()) < classes
    data.graph.validate()
    src, dst = data.graph.edge_index()
    keys = edge_keys(data.graph)
    assert not (src == dst).any()
    assert len(np.unique(keys)) == edges
    if not directed:
        assert np.array_equal(np.sort(keys), np.sort(edge_keys(data.graph.reverse())))


def test_a_directed_graph_is_not_symmetric():
    data = hr.generate.community(500, 5_000, directed=True)
    forward, backward = edge_keys(data.graph), edge_keys(data.graph.reverse())
    assert len(np.intersect1d(forward, backward)) < 0.5 * len(forward)


@pytest.mark.parametrize("directed", [False, True])
def test_threads_change_nothing(directed):
    made = [
        hr.generate.community(nodes=20_000, edges=300_000, classes=7, features=5, seed=11, directed=directed, threads=t)
        for t in (1, 2, 7)
    ]
    for other in made[1:]:
        assert_same_dataset(other, made[0])


def test_seeds_change_everything():
    a, b = (hr.generate.community(1_000, 10_000, features=4, seed=s) for s in (0, 1))
    assert len(np.intersect1d(edge_keys(a.graph), edge_keys(b.graph))) < 0.2 * 10_000
    assert not torch.isclose(a.x, b.x).float().mean() > 0.01
    assert (a.y == b.y).float().mean() < 0.5
    for split in ("train", "val"):
        assert not torch.equal(a.splits[split], b.splits[split])


def test_high_seed_words_matter():
    a, b = (hr.generate.community(200, 1_000, features=2, seed=s) for s in (1, 1 + 2**32))
    assert not torch.equal(a.x, b.x)


@pytest.mark.parametrize(("classes", "homophily"), [(10, 0.8), (10, 1.0), (20, 0.5), (40, 0.7), (40, 0.0)])
def test_homophily_is_about_what_was_asked(classes, homophily):
    data = hr.generate.community(20_000, 200_000, classes=classes, features=0, homophily=homophily, noise=0.0)
    assert abs(share_within_class(data) - homophily) < 0.06


@pytest.mark.parametrize(("classes", "homophily"), [(2, 0.2), (10, 0.2)])
def test_low_homophily_is_about_what_was_asked(classes, homophily):
    data = hr.generate.community(20_000, 200_000, classes=classes, features=0, homophily=homophily, noise=0.0)
    assert abs(share_within_class(data) - homophily) < 0.06


def test_degrees_follow_a_power_law(medium):
    degrees = medium.graph.degrees().double()
    assert degrees.mean() == 20
    assert degrees.max() > 15 * degrees.mean()
    assert degrees.median() < 0.85 * degrees.mean()
    # P(degree > k) falls like k^(1 - exponent): a factor 4 in k costs 4^1.8 = 12 in the tail.
    tail = float((degrees > 30).sum() / (degrees > 120).sum())
    assert 6 < tail < 24


def test_exponent_steers_the_tail():
    heavy, light = (hr.generate.community(20_000, 200_000, features=0, exponent=e).graph.degrees().max() for e in (2.2, 4.0))
    assert heavy > 3 * light


def test_max_degree_bounds_expected_degrees():
    free, cut = (hr.generate.community(20_000, 200_000, features=0, max_degree=m).graph.degrees().max() for m in (None, 60))
    assert free > 200
    assert cut < 2 * 60


def test_ids_carry_no_locality(medium):
    """Neighboring ids are no likelier to be of one class, or to be linked, than any two."""
    same = float((medium.y[1:] == medium.y[:-1]).double().mean())
    share = medium.y.bincount().double() / medium.num_nodes
    assert abs(same - float((share**2).sum())) < 0.015
    src, dst = medium.graph.edge_index()
    near = float(((src - dst).abs() <= 100).double().mean())
    assert abs(near - 200 / medium.num_nodes) < 0.003
    correlation = np.corrcoef(np.arange(medium.num_nodes), medium.graph.degrees())[0, 1]
    assert abs(correlation) < 0.03


def test_blocks_give_partitions_something_to_find():
    """With small blocks, a node's neighbors know one another much more often than without."""

    def triangles(nested):
        graph = hr.generate.community(2_000, 20_000, classes=2, features=0, nested=nested, block=50, exponent=8.0).graph
        dense = torch.zeros(2_000, 2_000)
        src, dst = graph.edge_index()
        dense[src, dst] = 1
        return float(((dense @ dense) * dense).sum())

    assert triangles(0.9) > 2 * triangles(0.0)


def test_splits_are_disjoint_and_of_the_size_asked_for():
    data = hr.generate.community(1_000, 4_000, features=0, splits=(0.5, 0.2, 0.1), seed=5)
    sizes = {name: len(ids) for name, ids in data.splits.items()}
    assert sizes == {"train": 500, "val": 200, "test": 100}
    together = torch.cat(list(data.splits.values()))
    assert len(together.unique()) == 800
    assert 0 <= int(together.min()) <= int(together.max()) < 1_000


def test_splits_that_add_up_to_one_cover_all_nodes(medium):
    assert torch.equal(torch.cat(list(medium.splits.values())).sort().values, torch.arange(medium.num_nodes))


@pytest.mark.parametrize(("classes", "noise"), [(4, 0.0), (4, 0.3), (2, 0.5), (10, 1.0), (1, 0.7)])
def test_best_accuracy_is_the_share_of_true_labels(classes, noise):
    clean, noisy = (hr.generate.community(50_000, 0, classes=classes, features=0, noise=n, seed=9) for n in (0.0, noise))
    assert clean.info["best_accuracy"] == 1
    assert float((clean.y == noisy.y).double().mean()) == pytest.approx(noisy.info["best_accuracy"], abs=0.01)


def nearest_center_accuracy(x, data):
    train, test = data.splits["train"], data.splits["test"]
    centers = torch.stack([x[train][data.y[train] == c].mean(0) for c in range(data.num_classes)])
    guess = torch.cdist(x[test], centers).argmin(1)
    return float((guess == data.y[test]).double().mean())


def test_labels_can_be_learnt_and_neighbors_help(medium):
    graph = medium.graph
    own = nearest_center_accuracy(medium.x, medium)
    averaged = nearest_center_accuracy(
        medium.x + hr.kernels.aggregate_reference(medium.x, graph.indptr, graph.indices, reduce="mean") * 4, medium
    )
    majority = float(medium.y.bincount().max()) / medium.num_nodes
    assert own > majority + 0.15
    assert averaged > own + 0.1
    assert averaged <= medium.info["best_accuracy"] + 0.01


def test_features_are_class_centers_plus_unit_noise():
    data = hr.generate.community(20_000, 0, classes=3, features=7, noise=0.0, signal=0.5, seed=2)
    for c in range(3):
        rows = data.x[data.y == c]
        assert torch.allclose(rows.std(0), torch.ones(7), atol=0.05)
    centers = torch.stack([data.x[data.y == c].mean(0) for c in range(3)])
    assert 0.2 < float(centers.pow(2).mean().sqrt()) < 0.8
    assert float(torch.corrcoef((data.x - centers[data.y]).T).fill_diagonal_(0).abs().max()) < 0.04


def test_info_says_how_it_was_made(medium):
    assert medium.info["name"] == "community"
    assert medium.info["seed"] == 3
    assert medium.info["num_classes"] == 10


def test_presets_have_the_published_sizes():
    published = {  # nodes, edges, classes, features, train / val / test
        "products": (2_449_029, 123_718_280, 47, 100, (196_615, 39_323, 2_213_091)),
        "reddit": (232_965, 114_615_892, 41, 602, (153_431, 23_831, 55_703)),
        "papers100M": (111_059_956, 1_615_685_872, 172, 128, (1_207_179, 125_265, 214_338)),
    }
    assert {n: (p.nodes, p.edges, p.classes, p.features, p.splits) for n, p in PRESETS.items()} == published


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("scale", [1e-9, 1e-5, 1e-4])
def test_presets_at_a_tiny_scale_keep_features_and_classes(name, scale):
    preset, data = PRESETS[name], hr.generate.preset(name, scale=scale, seed=1)
    assert (data.num_classes, data.num_features) == (preset.classes, preset.features)
    assert data.info["name"] == name
    assert data.info["scale"] == scale
    if int(preset.nodes * scale) >= 2 * preset.classes:
        assert data.num_nodes == int(preset.nodes * scale)


def test_presets_keep_the_mean_degree_and_the_split_shares():
    data = hr.generate.preset("products", scale=0.002)
    assert (data.num_nodes, data.num_edges) == (4_898, 247_436)
    shares = [len(data.splits[s]) / data.num_nodes for s in ("train", "val", "test")]
    assert shares == pytest.approx([0.0803, 0.0161, 0.9037], abs=1e-3)


def test_unknown_preset_names_the_known_ones():
    with pytest.raises(ValueError, match="no preset 'cora': choose one of products, reddit, papers100M"):
        hr.generate.preset("cora")
    for scale in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="scale must be above 0 and at most 1"):
            hr.generate.preset("products", scale=scale)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"nodes": 1, "classes": 1, "edges": 0}, "nodes must be at least 2, not 1"),
        ({"nodes": -5}, "nodes must be at least 2, not -5"),
        ({"classes": 0}, "classes must be from 1 to the number of nodes, not 0"),
        ({"classes": 101}, "classes must be from 1 to the number of nodes, not 101"),
        ({"features": -1}, "features must not be negative, got -1"),
        ({"edges": -2}, "edges must be from 0"),
        ({"edges": 4_952}, r"edges must be from 0 to half of all pairs \(4950\), not 4952"),
        ({"edges": 401}, "must be even, not 401"),
        ({"homophily": 1.1}, "homophily must be from 0 to 1, not 1.1"),
        ({"homophily": float("nan")}, "homophily must be from 0 to 1, not nan"),
        ({"nested": -0.1}, "nested must be from 0 to 1, not -0.1"),
        ({"noise": 2}, "noise must be from 0 to 1, not 2"),
        ({"exponent": 2.0}, "exponent must be above 2"),
        ({"exponent": float("nan")}, "exponent must be above 2"),
        ({"splits": (0.5, 0.5, 0.5)}, "splits must be three shares"),
        ({"splits": (0.5, -0.1, 0.5)}, "splits must be three shares"),
        ({"splits": (0.5, 0.5)}, "splits must be three shares"),
        ({"block": 0}, "block must be positive"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
    ],
)
def test_bad_arguments_are_named(keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        hr.generate.community(**{"nodes": 100, "edges": 400} | keywords)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_named(seed):
    with pytest.raises(ValueError, match="seed"):
        hr.generate.community(100, 400, seed=seed)


@pytest.mark.parametrize("max_degree", [0, -5])
def test_max_degree_must_be_positive(max_degree):
    with pytest.raises(ValueError, match="max_degree"):
        hr.generate.community(100, 400, max_degree=max_degree)


def test_edges_that_do_not_fit_are_an_error_with_a_remedy():
    with pytest.raises(ValueError, match=r"4950 edges do not fit among 100 nodes .* use fewer edges, a lower homophily"):
        hr.generate.community(100, 4_950, classes=2, features=0, homophily=1.0, nested=1.0, block=10)
