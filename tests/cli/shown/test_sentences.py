"""What is too large, or not finite, is refused in one sentence with exit code 2."""

import errno

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.cli.shown.sentences import sentence

runner = CliRunner()
NODES = "generate:community?nodes=200&edges=1600&classes=3&features=8"
TRIPLES = "generate:knowledge?nodes=60&edges=900&relations=3"
HUGE = "99999999999999999999"
ON_DISK = ["--storage", "disk", "--partitions", "4", "--buffer", "2"]
LOST = ["--optimizer", "sgd", "--lr", "1e30", "--init", "1", "--epochs", "1", "--batch-size", "1000"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "node", NODES, "--hidden", "1000000000000"], "lower hidden or layers"),
        (["train", "node", NODES, "--full-batch", "--hidden", "1000000000"], "lower hidden or layers"),
        (["train", "node", NODES, "--layers", "4294967296", "--fanout", ""], "lower hidden or layers"),
        (["train", "node", NODES, "--seed", HUGE], "seed must be below 2**63"),
        (["train", "node", NODES, "--lr", "inf"], "lr must be a finite number"),
        (["train", "node", "generate:community?nodes=1e30&edges=100"], "generate a smaller one"),
        (["train", "node", "generate:community?nodes=100&edges=400&features=1152921504606846976"], "generate a smaller one"),
        (["train", "node", "generate:community?nodes=100&edges=400&exponent=1e308"], "exponent must be above 2"),
        (["train", "link", "generate:knowledge?nodes=100&edges=1e15"], "generate a smaller one"),
        (["train", "link", TRIPLES, "--dim", "1000000000000"], "lower dim"),
        (["train", "link", TRIPLES, "--dim", "1000000000000", *ON_DISK], "lower dim"),
        (["train", "link", TRIPLES, "--negatives", "10000000000"], "lower negatives or chunks"),
        (["train", "link", TRIPLES, "--encoder", "sage", "--hidden", "100000000000"], "lower dim or hidden"),
        (["train", "link", TRIPLES, *LOST], "lower lr"),
        (["advise", NODES, "--device", "1EiB"], "device must be cpu or cuda"),
        (["demo", "--nodes", "1000000000000"], "generate a smaller one"),
    ],
)
def test_what_cannot_be_held_is_refused_in_a_sentence(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace: ")
    assert message in last
    assert not list(tmp_path.glob("runs/*/result.json"))


@pytest.mark.parametrize("more", [[], ["--self-loops", "add"]])
@pytest.mark.parametrize(("nodes", "message"), [("1099511627776", "of disk"), (HUGE, "must be below 2**62")])
def test_an_import_that_no_disk_can_hold_writes_nothing(tmp_path, nodes, message, more):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    result = runner.invoke(app, ["import", str(tmp_path / "edges.csv"), str(tmp_path / "out"), "--num-nodes", nodes, *more])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["edges.csv"]


def test_no_more_candidates_are_drawn_than_there_are_nodes():
    data = hr.generate.knowledge(nodes=60, edges=900, relations=3)
    options = hr.train.LinkOptions(dim=4, epochs=1, ranking="sampled", candidates=1_000_000_000)
    assert hr.train.link(data, options).test["candidates"] == 60


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 8.00 EiB for an array"), "8.00 EiB"),
        (RuntimeError("can't allocate memory: you tried to allocate 4000000000000 bytes."), "3.6 TiB were asked for"),
        (RuntimeError("Storage size calculation overflowed with sizes=[1, 2]"), "too large"),
        (OverflowError("int too large to convert"), "too large"),
        (OSError(errno.ENOSPC, "No space left on device", "file"), "No space left"),
        (ValueError("a\n  b"), "a b"),
    ],
)
def test_errors_have_words(error, words):
    assert words in sentence(error)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), KeyError("a"), OSError(errno.EPIPE, "Broken pipe"), AssertionError()])
def test_defects_are_not_hidden(error):
    assert sentence(error) is None
