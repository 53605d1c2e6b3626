from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.graph.known.named import named


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with nothing known around it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    return tmp_path


def assert_same(found: hr.Dataset, wanted: hr.Dataset) -> None:
    assert torch.equal(found.graph.indptr, wanted.graph.indptr)
    assert torch.equal(found.graph.indices, wanted.graph.indices)
    assert torch.equal(found.x, wanted.x)
    assert torch.equal(found.y, wanted.y)
    assert {n: i.tolist() for n, i in found.splits.items()} == {n: i.tolist() for n, i in wanted.splits.items()}


def test_a_preset_with_its_arguments():
    assert_same(named("generate:products?scale=0.001&seed=4"), hr.generate.preset("products", scale=0.001, seed=4))
    assert_same(named("generate:products?scale=1e-3"), hr.generate.preset("products", scale=0.001))


def test_arguments_may_be_written_with_commas_which_no_shell_expands():
    assert_same(named("generate:products,scale=0.001,seed=4"), named("generate:products?scale=0.001&seed=4"))
    split = named("generate:community,nodes=100,edges=600,splits=0.5,0.25,0.25,seed=3")
    assert_same(split, named("generate:community?nodes=100&edges=600&splits=0.5,0.25,0.25&seed=3"))
    for spec in ("generate:products,0.1", "generate:products,", "generate:products,scale"):
        with pytest.raises(ValueError, match=r"is no argument: write generate:products,\S+=\.\.\."):
            named(spec)


def test_a_community_graph_with_its_arguments():
    spec = "generate:community?nodes=500&edges=4e3&classes=3&features=5&homophily=0.7&directed=true&block=50&seed=9"
    spec += "&splits=0.5,0.25,0.25"
    wanted = hr.generate.community(
        nodes=500, edges=4000, classes=3, features=5, homophily=0.7, directed=True, splits=(0.5, 0.25, 0.25), block=50, seed=9
    )
    assert_same(named(spec), wanted)


@pytest.mark.parametrize(("text", "directed"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_truth_can_be_written_as_a_word_or_a_number(text, directed):
    assert named(f"generate:community?nodes=100&edges=600&directed={text}").info["directed"] is directed


def test_a_directory(here):
    data = hr.generate.community(nodes=100, edges=600, classes=3, features=4)
    data.save(here / "deep" / "tiny")
    for spec in (str(here / "deep" / "tiny"), "deep/tiny", "./deep/tiny", "deep/tiny/"):
        assert_same(named(spec), data)


def test_a_directory_here_comes_before_a_known_name(here, data_root, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    hr.generate.community(nodes=100, edges=600, classes=3, features=4).save(here / "cora")
    assert named("cora").num_nodes == 100


def test_a_known_name(here, data_root, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    assert_same(named("cora"), hr.load("cora", data_root))
    assert named("cora").info["name"] == "cora"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("generate:cora", "there is nothing to generate called 'cora': choose one of products, reddit, papers100M, community"),
        ("generate:", "there is nothing to generate called ''"),
        ("generate:products?scal=0.1", "products has no argument 'scal': did you mean 'scale'?"),
        ("generate:community?nodes=10&edges=20&homofily=1", "community has no argument 'homofily': did you mean 'homophily'?"),
        ("generate:products?name=reddit", "products has no argument 'name'"),
        ("generate:products?zzz=1", "products has no argument 'zzz'"),
        ("generate:products?scale=big", "scale=big cannot be read: give a number"),
        ("generate:products?scale=", "scale= cannot be read: give a number"),
        ("generate:community?nodes=10.5&edges=20", "nodes=10.5 cannot be read: give a number"),
        ("generate:community?nodes=1e400&edges=20", "nodes=1e400 cannot be read: give a number"),
        ("generate:community?nodes=15e-1&edges=20", "nodes=15e-1 cannot be read: give a number"),
        ("generate:community?nodes=100&edges=600&directed=perhaps", "directed is true or false"),
        ("generate:community?nodes=100&edges=600&splits=half", "splits=half cannot be read"),
        ("generate:community?nodes=100", r"community needs edges: generate:community,edges=..."),
        ("generate:community", r"community needs nodes and edges: generate:community,nodes=...,edges=..."),
        ("generate:products?scale=2", "scale must be above 0 and at most 1, not 2.0"),
        ("generate:products?scale=nan", "scale must be above 0 and at most 1, not nan"),
    ],
)
def test_what_cannot_be_generated_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        named(spec)


def test_what_is_nowhere_is_named(here, data_root, monkeypatch):
    with pytest.raises(FileNotFoundError, match="'kora' is no directory here, and as a known dataset: there is no 'kora'"):
        named("kora")
    with pytest.raises(OSError, match="there is no dataset at"):
        named("deep/nothing")
    with pytest.raises(OSError, match="there is no dataset at"):
        named(str(here / "nothing"))
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    with pytest.raises(FileNotFoundError, match=r"there is no dataset 'kora' in .*: it has .*cora"):
        named("kora")


def test_a_directory_of_something_else_is_named(here):
    (here / "letters").mkdir()
    with pytest.raises((OSError, ValueError), match="letters"):
        named("letters")


@pytest.mark.parametrize("name", ["there/cora", Path("cora"), Path("there") / "cora"])
def test_load_takes_names_and_says_what_reads_a_path(name):
    with pytest.raises(ValueError, match=r"is a path.*headrace\.open reads"):
        hr.load(name)
