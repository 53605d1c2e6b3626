"""`headrace cost`: from the directory of a run alone."""

import json
import math
import zlib

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.cli.trained.cost import dollars
from headrace.plan import read_prices
from training_cases import small

GB = 1769 / 1024


def cost(*arguments):
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def priced(*arguments):
    done = cost(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["runs"]


def sealed(line):
    return json.dumps({**line, "crc32": zlib.crc32(json.dumps(line).encode())}) + "\n"


@pytest.fixture
def run(tmp_path):
    """Two servers for 100 s, ten epochs, 40 calls of 2.5 s to workers of one vCPU: eight at once, at five times."""
    path = tmp_path / "gat"
    path.mkdir()
    (path / "options.json").write_text(json.dumps({"format": 2, "task": "node", "options": {"device": "cpu"}, "dataset": {}}))
    ranks = {"size": 2, "phases": {"ghosts": {"sent": 10, "seconds": 1.5}, "gradients": {"sent": 1, "seconds": 0.5}}}
    lines = [{"kind": "epoch", "epoch": e, "seconds": 9.0 * (e + 1), "epoch_seconds": 8.0, "ranks": ranks} for e in range(10)]
    lines.append({"kind": "end", "reason": "finished", "seconds": 100.0})
    (path / "metrics.jsonl").write_text("".join(map(sealed, lines)))
    calls = [
        {"task": f"{n // 8}/0/forward/{n % 8}", "began": 20.0 * (n // 8), "ms": 2500.25, "gb": GB, "kind": "lambda"}
        | {"sent": 1000, "received": 500, "relaunched": n == 3, "duplicate": n in (4, 5), "failed": n == 6, "objects": n % 2}
        for n in range(40)
    ]
    (path / "calls.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    return path


def test_cost_recomputed_from_the_log_is_the_printed_one(run):
    (found,) = priced(run)
    calls = [json.loads(line) for line in (run / "calls.jsonl").read_text().splitlines()]
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    servers = seconds * 2 * 0.34 / 3600
    invoked = sum(math.ceil(call["ms"]) / 1000 * call["gb"] * 0.0000166667 + 0.2e-6 for call in calls)
    objects = sum(call["objects"] for call in calls) * (5e-6 + 4e-7) / 2
    assert abs(found["cost"]["servers"] - servers) < 1e-9
    assert abs(found["cost"]["calls"] - invoked) < 1e-9
    assert abs(found["cost"]["objects"] - objects) < 1e-9
    assert abs(found["cost"]["total"] - (servers + invoked + objects)) < 1e-9
    assert found["value"] == pytest.approx(1 / (seconds * (servers + invoked + objects)), rel=1e-9)


def test_what_a_run_used(run):
    (found,) = priced(run)
    assert (found["seconds"], found["epochs"], found["ended"]) == (100.0, 10, True)
    assert found["servers"] == {"type": "c5.2xlarge", "number": 2}
    calls = {"number": 40, "lambda": 40, "relaunched": 1, "duplicate": 2, "failed": 1, "sent": 40_000, "received": 20_000}
    assert found["calls"] == {**calls, "objects": 20, "burst_vcpus": pytest.approx(8.0)}
    assert found["communication"] == pytest.approx(2.0 / 8.0)
    assert found["busy"] == pytest.approx(40 * 2.50025 / (8 * 100))
    assert found["threshold"] == pytest.approx(0.41, abs=0.001)


def test_what_ifs(run):
    (found,) = priced(run, "--gpu-seconds", 50)
    others = {what_if["name"]: what_if for what_if in found["what_ifs"]}
    # cores for eight calls at once are one server more; they are busy an eighth of the time, so workers are cheaper
    cores = others["3 x c5.2xlarge, no workers"]
    assert cores["cost"] == {
        "servers": pytest.approx(100 * 3 * 0.34 / 3600),
        "calls": 0.0,
        "objects": 0.0,
        "total": cores["cost"]["servers"],
    }
    assert found["busy"] < found["threshold"]
    assert cores["cost"]["total"] > found["cost"]["total"]
    assert others["4 x c5.xlarge"]["cost"] == found["cost"]  # as many cores
    assert others["2 x c5n.2xlarge"]["cost"]["servers"] == pytest.approx(100 * 2 * 0.432 / 3600)
    assert others["2 x c5n.2xlarge"]["cost"]["calls"] == found["cost"]["calls"]
    gpu = others["1 x p3.2xlarge"]
    assert (gpu["seconds"], gpu["cost"]["total"]) == (50.0, pytest.approx(50 * 3.06 / 3600))
    assert gpu["value"] == pytest.approx(1 / (50 * gpu["cost"]["total"]))
    assert not any("p3" in what_if["name"] for what_if in priced(run)[0]["what_ifs"])  # nobody knows its time


def test_other_servers(run):
    (found,) = priced(run, "--server", "c5n.4xlarge", "--servers", 5)
    assert found["servers"] == {"type": "c5n.4xlarge", "number": 5}
    assert found["cost"]["servers"] == pytest.approx(100 * 5 * 0.864 / 3600)


def test_own_prices(run, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'date = 2030-01-01\nregion = "cellar"\n[lambda]\ngb_second = 0\nrequest = 1\ngb_per_vcpu = 1\n'
        "[objects]\nput = 0\nget = 0\n[servers]\nbox = { hour = 36, vcpus = 2 }\n"
    )
    (found,) = priced(run, "--prices", file, "--server", "box")
    assert found["cost"] == {"servers": pytest.approx(2.0), "calls": 40.0, "objects": 0.0, "total": pytest.approx(42.0)}


def test_workers_that_are_not_on_lambda_are_priced_as_if(run):
    text = (run / "calls.jsonl").read_text()
    (on_lambda,) = priced(run)
    (run / "calls.jsonl").write_text(text.replace('"lambda"', '"threads"').replace(f'"gb": {GB}', '"gb": 0'))
    (found,) = priced(run)
    assert found["cost"]["calls"] == found["cost"]["objects"] == 0.0
    assert found["busy"] == pytest.approx(on_lambda["busy"])
    (as_if,) = [what_if for what_if in found["what_ifs"] if what_if["name"] == "all workers on Lambda"]
    assert as_if["cost"]["total"] == pytest.approx(on_lambda["cost"]["total"], rel=1e-12)


def test_tables(run):
    done = cost(run, "--gpu-seconds", 50)
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for words in (
        "2 x c5.2xlarge, prices of us-east-1",
        "100.0 s, 10 epochs",
        "$0.0218: servers $0.0189, calls $0.00289, objects $0.0000540",
        "40 lambda; 1 relaunched, 2 duplicates, 1 failed",
        "25.0% of the epochs' time",
        "cores for their burst (8.0 vCPUs) would be busy 12.5% of the time; workers pay below 41%",
        "3 x c5.2xlarge, no workers",
        "1 x p3.2xlarge",
    ):
        assert words in shown, words


def test_any_run_can_be_priced(tmp_path):
    data = hr.generate.community(nodes=200, edges=2000, classes=2, features=4)
    for repeats in (1, 2):
        path = tmp_path / f"repeats {repeats}"
        result = hr.train.node(data, options=small(epochs=2, repeats=repeats), out=path)
        (found,) = priced(path)
        assert found["seconds"] == pytest.approx(result.seconds)
        assert found["cost"]["total"] == pytest.approx(result.seconds * 0.34 / 3600)
        assert (found["epochs"], found["calls"]["number"], found["busy"]) == (2 * repeats, 0, None)
    done = cost(tmp_path / "repeats 1", tmp_path / "repeats 2")
    assert "workers pay below 41%" in done.stdout
    assert done.stdout.count("what if") == 2


def test_calls_of_repeats_come_one_after_the_other(run, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "options.json").write_text((run / "options.json").read_text())
    for number in (1, 2):
        folder = whole / f"repeat-{number}"
        folder.mkdir()
        for name in ("options.json", "metrics.jsonl", "calls.jsonl"):
            (folder / name).write_text((run / name).read_text())
    (once,), (twice,) = priced(run), priced(whole)
    assert twice["seconds"] == 2 * once["seconds"]
    assert twice["cost"]["total"] == pytest.approx(2 * once["cost"]["total"])
    assert twice["busy"] == pytest.approx(once["busy"])


def test_files_of_other_servers_and_a_line_that_is_being_written(run):
    lines = (run / "calls.jsonl").read_text().splitlines(keepends=True)
    (run / "calls-1.jsonl").write_text("".join(lines[:10]) + lines[0][:20])
    assert priced(run)[0]["calls"]["number"] == 50


def test_an_unfinished_run_is_priced_so_far(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:4]))
    (found,) = priced(run)
    assert (found["seconds"], found["ended"]) == (36.0, False)
    assert "still running or interrupted" in cost(run).stdout


def damaged(name, change):
    def damage(run):
        text = (run / name).read_text()
        (run / name).write_text(change(text))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "options.json").unlink(), "is no run: it has no options.json"),
        (lambda run: (run / "metrics.jsonl").unlink(), "has no step in its log: there is nothing to pay for yet"),
        (damaged("metrics.jsonl", lambda text: text.replace("9.0", "8.0", 1)), "line 1 of"),
        (damaged("calls.jsonl", lambda text: text.replace('"ms"', '"mss"', 1)), "calls.jsonl is damaged: 'ms' is missing"),
        (damaged("calls.jsonl", lambda text: text.replace("2500.25", "-1", 1)), "line 1 of"),
        (damaged("calls.jsonl", lambda text: text.replace("2500.25", "Infinity", 1)), "'ms' is inf"),
        (
            damaged("calls.jsonl", lambda text: text.replace('"lambda"', '"azure"', 1)),
            "'kind' is 'azure', not one of lambda, ray, threads",
        ),
        (damaged("calls.jsonl", lambda text: "{" + text), "line 1 of"),
        (damaged("options.json", lambda text: text.replace('"cpu"', '"cuda"')), "was trained on a GPU, and c5.2xlarge has none"),
    ],
)
def test_what_cannot_be_priced_is_one_line_and_status_2(run, damage, message):
    damage(run)
    done = cost(run)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "c9.large"], f"known are {', '.join(read_prices().servers)}"),
        (["--servers", "0"], "servers must be at least 1, not 0"),
        (["--gpu-seconds", "0"], "--gpu-seconds must be a positive number"),
        (["--gpu-seconds", "5", "--gpu", "c5.xlarge"], "gpu c5.xlarge has no GPU"),
        (["--prices", "nowhere.toml"], "nowhere.toml"),
        (["nowhere"], "there is no run at nowhere"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(run, arguments, message):
    done = cost(run, *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("amount", "text"), [(0.0, "$0.00"), (1234.5, "$1,234.50"), (0.34, "$0.340"), (0.0000054, "$0.00000540")])
def test_dollars(amount, text):
    assert dollars(amount) == text
