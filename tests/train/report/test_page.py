import dataclasses
import json
import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_runs import HOSTILE, hostile_run, report, write_link_run, write_repeats, write_run, write_snapshot_run

from headrace.train.report import write_report
from headrace.train.report.page import page
from headrace.train.report.read import read_run


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    text = report(tmp_path, write_run(tmp_path / "a"), write_repeats(tmp_path / "b")).read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'`]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href|action)\s*=|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b\s*\(", text)
    assert "{{" not in text


def test_nothing_in_the_data_ends_its_script_element(tmp_path):
    text = report(tmp_path, hostile_run(tmp_path / "a")).read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert embedded(text)["runs"][0]["name"] == HOSTILE


def test_a_dataset_without_a_spec_goes_by_its_name(tmp_path):
    text = page([read_run(write_run(tmp_path / "a", epochs=1, dataset={"spec": None, "name": "my graph"}))])
    assert embedded(text)["runs"][0]["dataset"]["spec"] == "my graph"


def test_a_report_of_ten_long_runs_stays_small(tmp_path):
    run = read_run(write_run(tmp_path / "a", epochs=1000))
    text = page([dataclasses.replace(run, name=f"run {i}") for i in range(10)])
    assert len(text.encode()) < 1_000_000
    [line] = embedded(text)["runs"][0]["curves"]
    assert (line["epoch"][0], line["epoch"][-1], len(line["epoch"])) == (1, 1000, 1000)


def test_a_run_of_links_has_ranks_stages_and_what_the_disk_did(tmp_path):
    plan = {"predicted": {"read": 7e6, "written": 3.9e6, "seconds": 1.5}}
    run = embedded(page([read_run(write_link_run(tmp_path / "a", disk=True, sampled=True, plan=plan))]))["runs"][0]
    [line] = run["curves"]
    [mrr] = run["summary"]["measures"]
    assert mrr["name"] == "mrr"
    assert line["val_mrr"][0] is None
    assert line["val_mrr"][-1] == mrr["val"]["mean"] > 0.25
    assert line["val_hits10"][-1] == pytest.approx(1.5 * line["val_mrr"][-1], rel=1e-3)
    assert "val_accuracy" not in line
    assert [row["name"] for row in run["summary"]["ranks"]] == ["full filtered", "full raw", "sampled filtered"]
    assert run["summary"]["ranks"][0]["mrr"] == mrr["test"]["mean"]
    assert run["summary"]["best_epochs"] == [6]
    assert run["summary"]["predicted"]["written"] == 3.9e6
    assert run["time"] == {"wait": 0.25, "load": 0.5, "compute": 1.25, "validate": 0.5}
    assert [stage["seconds"] for stage in run["stages"]] == [0.5] * 6
    [load] = run["loads"]
    assert (load["in_flight"][0], load["disk_bytes_read"][0], load["disk_busy"][0]) == (16, 4_000_000, 0.25)
    assert run["dataset"]["relations"] == 237
    assert run["about"]["negatives_from"] == "any nodes"


def test_a_run_on_snapshots_has_its_forecast_baselines_and_balance(tmp_path):
    run = embedded(page([read_run(write_snapshot_run(tmp_path / "a"))]))["runs"][0]
    own, zero, linear = run["baselines"]
    assert own == {"name": "this run", "mse": 26.5, "mae": 3}
    assert (zero["name"], linear["mse"]) == ("zero", 28.4)
    assert run["summary"]["ranks"] == []  # baselines are no ranking
    assert run["forecast"]["snapshots"] == [1613, 1614, 1615]
    [line] = run["forecast"]["lines"]  # the other one is damaged
    assert line == {"name": "mean of all nodes", "truth": [60, 61, 59.5], "forecast": [60.5, 60.5, 60]}
    assert run["balance"]["means"] == {"makespan": 0.5, "bound": 0.4, "idle": 0.25, "bytes": 1000}
    assert run["balance"]["steps"]["over_bound"] == [1, 1.1, 1.2, 1.3] * 3
    assert run["balance"]["steps"]["bytes"] == [1000, 1001, 1002, 1003] * 3
    other = embedded(page([read_run(write_run(tmp_path / "b", epochs=1))]))["runs"][0]
    assert (other["forecast"], other["baselines"], other["balance"]) == (None, [], {})


def test_the_steps_of_a_long_run_are_means_of_several(tmp_path):
    run = read_run(write_snapshot_run(tmp_path / "a", epochs=300))
    balance = embedded(page([run]))["runs"][0]["balance"]
    assert (len(balance["steps"]["idle"]), balance["each"]) == (400, 3)


def test_the_best_epoch_of_links_so_far_is_that_of_the_highest_mrr(tmp_path):
    summary = embedded(page([read_run(write_link_run(tmp_path / "a", epochs=4, end=None))]))["runs"][0]["summary"]
    assert summary["best_epochs"] == [4]
    assert summary["ranks"] == []
    assert summary["measures"][0]["val"]["mean"] > 0.2


def test_a_report_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    run = write_run(tmp_path / "run", epochs=1)
    out = tmp_path / "out" / "report.html"
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        write_report([run], out)
    out.parent.mkdir()
    out.write_text("before")
    with pytest.raises(FileNotFoundError):
        write_report([tmp_path / "nothing"], out)
    assert out.read_text() == "before"
    write_report([run], out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(out.parent.iterdir()) == [out]
    with pytest.raises(ValueError, match="is a directory"):
        write_report([run], out.parent)


KEYS = ("epoch", "batch", "step", "seconds", "epoch_seconds", "loss", "val_accuracy", "time", "stages", "throughput", "sampled")
KEYS += ("val_mrr", "val", "test", "best_possible", "disk", "in_flight", "plan", "predicted", "hits@1", "mrr")
KEYS += ("memory", "cache", "reason", "best_epoch", "busy", "name", "nodes", "mean", "item", "dataset", "options", "repeats")
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable + "\ud800", max_size=4)
objects = st.recursive(leaves, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(KEYS), part, max_size=4))
records = st.dictionaries(st.sampled_from(KEYS), objects)
names = st.sampled_from(["mrr", "loss", "accuracy"])
described = st.fixed_dictionaries({"name": names | leaves}, optional={"better": st.just("lower") | objects, "format": leaves})
lines = st.builds(lambda kind, rest: {"kind": kind, "epoch": 0} | rest, st.sampled_from(["step", "epoch", "end"]), records)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(lines, max_size=6), about=records, measures=st.lists(described, max_size=3), other=objects)
def test_whatever_the_files_hold_the_page_is_made(tmp_path, lines, about, measures, other):
    span = {"ph": "X", "ts": 1, "dur": 1, "args": other, "tid": other}
    (tmp_path / "options.json").write_text(json.dumps({"measures": measures} | about))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [span, other]}))
    (tmp_path / "result.json").write_text(json.dumps({"test_accuracy": other, "seconds": other}))
    text = report(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert len(embedded(text)["runs"]) == 1
